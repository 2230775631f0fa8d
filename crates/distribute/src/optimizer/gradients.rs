//! The gradients that one replica brings to a step.

use crate::context::raised;
use crate::{Error, ReplicaContext, Result};
use candle_core::{DType, Tensor, Var};
use std::panic::Location;

/// What one replica brings to a step.
#[derive(Debug)]
pub(super) struct Contribution {
    pub(super) examples: usize,
    /// The losses of all examples, added up.
    pub(super) loss: f64,
    pub(super) dtype: DType,
    /// What the gradients are of.
    pub(super) of: Of,
    /// For each variable its gradient, contiguous; none where the loss doesn't depend on it.
    pub(super) gradients: Vec<Option<Tensor>>,
}

/// What gradients are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// The loss added up over the examples. Where replicas take part in each other's graphs, by collectives, nothing
    /// else will do: a replica's gradient then contains the others' losses, which weigh by their own examples.
    Sum,
    /// The mean loss over the examples: of a replica that is alone, for the same bits as without a strategy.
    Mean,
}

/// Gradients of one micro-batch after another.
pub(super) struct Accumulated<'a> {
    variables: &'a [(String, Var)],
    sum: Contribution,
}

impl<'a> Accumulated<'a> {
    pub(super) fn new(variables: &'a [(String, Var)], of: Of) -> Self {
        let gradients = vec![None; variables.len()];
        Self { variables, sum: Contribution { examples: 0, loss: 0., dtype: DType::F32, of, gradients } }
    }

    /// Adds the gradients of a mean loss over `examples`. One over none has no weight, but takes part in the gradients of
    /// the others' collectives.
    pub(super) fn add(
        &mut self,
        ctx: &ReplicaContext,
        loss: Tensor,
        examples: usize,
        at: &'static Location<'static>,
    ) -> Result<()> {
        if examples == 0 {
            return ctx.join_gradients(None, at);
        }
        if loss.rank() != 0 {
            let reason = format!(
                "the loss has shape {:?}; give the mean over this replica's examples, a scalar",
                loss.dims()
            );
            return Err(Error::invalid("minimize", reason));
        }
        let root = match self.sum.of {
            Of::Sum => (&loss * examples as f64)?,
            Of::Mean => loss.clone(),
        };
        ctx.join_gradients(Some(&root), at)?;
        let mut grads = root.backward().map_err(|error| raised(error.into()))?;
        for ((_, variable), sum) in self.variables.iter().zip(&mut self.sum.gradients) {
            let new = grads.remove(variable).map(|gradient| gradient.detach().contiguous()).transpose()?;
            *sum = match (sum.take(), new) {
                (Some(sum), Some(new)) => Some((sum + new)?),
                (sum, new) => sum.or(new),
            };
        }
        if self.sum.examples == 0 {
            self.sum.dtype = loss.dtype();
        }
        self.sum.examples += examples;
        self.sum.loss += loss.to_dtype(DType::F64)?.to_scalar::<f64>()? * examples as f64;
        Ok(())
    }

    pub(super) fn finish(self) -> Contribution {
        self.sum
    }
}
