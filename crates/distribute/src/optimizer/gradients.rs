//! The gradients that one replica brings to a step.

use crate::context::raised;
use crate::{Error, Result};
use candle_core::{DType, Tensor, Var};

/// What one replica brings to a step: gradients of the mean loss over its examples, and how many there are.
#[derive(Debug)]
pub(super) struct Contribution {
    pub(super) examples: usize,
    pub(super) loss: f64,
    pub(super) dtype: DType,
    /// For each variable its gradient, contiguous; none where the loss doesn't depend on it.
    pub(super) gradients: Vec<Option<Tensor>>,
}

/// Gradients of one micro-batch after another, weighted by examples.
pub(super) struct Accumulated<'a> {
    variables: &'a [(String, Var)],
    batches: usize,
    /// While there is one batch its means; from the second on, sums over examples.
    sum: Contribution,
}

impl<'a> Accumulated<'a> {
    pub(super) fn new(variables: &'a [(String, Var)]) -> Self {
        let gradients = vec![None; variables.len()];
        Self {
            variables,
            batches: 0,
            sum: Contribution { examples: 0, loss: 0., dtype: DType::F32, gradients },
        }
    }

    /// Adds the gradients of a mean loss over `examples`. A loss over none is not looked at.
    pub(super) fn add(&mut self, loss: Tensor, examples: usize) -> Result<()> {
        if examples == 0 {
            return Ok(());
        }
        if loss.rank() != 0 {
            let reason = format!(
                "the loss has shape {:?}; give the mean over this replica's examples, a scalar",
                loss.dims()
            );
            return Err(Error::invalid("minimize", reason));
        }
        let mut grads = loss.backward().map_err(|error| raised(error.into()))?;
        let mut gradients = Vec::with_capacity(self.variables.len());
        for (_, variable) in self.variables {
            gradients.push(grads.remove(variable).map(|g| g.detach().contiguous()).transpose()?);
        }
        let dtype = loss.dtype();
        let loss = loss.to_dtype(DType::F64)?.to_scalar::<f64>()?;
        let new = Contribution { examples, loss, dtype, gradients };
        match self.batches {
            0 => self.sum = new,
            batches => {
                if batches == 1 {
                    let examples = self.sum.examples as f64;
                    scale(&mut self.sum, examples)?;
                }
                let mut new = new;
                scale(&mut new, examples as f64)?;
                self.sum.examples += new.examples;
                self.sum.loss += new.loss;
                for (sum, new) in self.sum.gradients.iter_mut().zip(new.gradients) {
                    *sum = match (sum.take(), new) {
                        (Some(sum), Some(new)) => Some((sum + new)?),
                        (sum, new) => sum.or(new),
                    };
                }
            }
        }
        self.batches += 1;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Contribution> {
        if self.batches > 1 {
            let examples = self.sum.examples as f64;
            scale(&mut self.sum, 1. / examples)?;
        }
        Ok(self.sum)
    }
}

fn scale(contribution: &mut Contribution, by: f64) -> Result<()> {
    contribution.loss *= by;
    for gradient in contribution.gradients.iter_mut().flatten() {
        *gradient = (&*gradient * by)?;
    }
    Ok(())
}
