//! Gradients of collectives: candle's graph goes on behind a result that other replicas took part in.

use super::ReplicaContext;
use crate::{Error, Result};
use candle_core::{Device, Tensor, TensorId, Var};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::Combined;
use distribute_tensor::Leaf;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

thread_local! {
    /// The error that a collective raised inside of candle's backward, which can only pass on text.
    static RAISED: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The error behind one of candle's, also where the closure has put its own around the text: where a collective failed
/// inside of backward, what it said. An earlier one that the closure has dealt with is not told again: the text tells
/// them apart.
pub(crate) fn raised(error: Error) -> Error {
    if error.blame().is_some() {
        return error;
    }
    match RAISED.take() {
        Some(raised) if error.to_string().contains(&raised.to_string()) => raised,
        _ => error,
    }
}

/// An error of this crate as one of candle's, which can only pass on its text: [`raised`] finds it again.
pub(crate) fn raise(error: Error) -> candle_core::Error {
    let text = error.to_string();
    RAISED.set(Some(error));
    candle_core::Error::msg(text)
}

/// Makes the gradient of one leaf of a call out of the upstream one.
pub(super) type Gradient = dyn Fn(usize, &Tensor, &ReplicaContext) -> Result<Tensor> + Send + Sync;

/// Ties results to the graphs of the tensors they were made of.
///
/// Where only other replicas' tensors have a graph, a variable of nobody's stands in for this replica's: its loss may
/// still depend on the result, and the others wait for its part of the gradient.
pub(super) fn attach(
    context: &ReplicaContext,
    inputs: Vec<Leaf>,
    combined: Combined,
    gradient: Arc<Gradient>,
) -> Result<Vec<Leaf>> {
    let attach = |(leaf, ((input, output), tracked)): (usize, ((Leaf, Leaf), bool))| match (&input, &output) {
        (Leaf::Candle(x), Leaf::Candle(y)) if tracked => {
            let x = if x.track_op() { x.clone() } else { Var::from_tensor(x)?.into_inner() };
            let operation = WithGradient {
                context: context.clone(),
                leaf,
                output: y.clone(),
                gradient: gradient.clone(),
            };
            let result = x.apply_op1(operation)?;
            let (gradient, shape, dtype) = (gradient.clone(), y.shape().clone(), y.dtype());
            context.expect_gradient(&result, move |context| {
                gradient(leaf, &Tensor::zeros(&shape, dtype, &Device::Cpu)?, context).map(drop)
            });
            Ok(Leaf::Candle(result))
        }
        _ => Ok(output),
    };
    inputs.into_iter().zip(combined.leaves).zip(combined.tracked).enumerate().map(attach).collect()
}

/// Takes part in a gradient without one of its own.
type TakePart = dyn Fn(&ReplicaContext) -> Result<()> + Send + Sync;

/// A result whose gradient is a collective: every replica has to take part in it.
pub(super) struct Expected {
    result: TensorId,
    with_zeros: Box<TakePart>,
}

/// For each replica that has a loss: which of the expected gradients it needs, in the order of its backward.
type Order = Option<Vec<usize>>;

impl ReplicaContext {
    /// Notes that all replicas take part in the gradient of `result`. All of them make this call, in the same order.
    pub(crate) fn expect_gradient(
        &self,
        result: &Tensor,
        with_zeros: impl Fn(&ReplicaContext) -> Result<()> + Send + Sync + 'static,
    ) {
        if self.member().is_none() {
            return;
        }
        self.expected().push(Expected { result: result.id(), with_zeros: Box::new(with_zeros) });
    }

    /// How many results, in this run, have a gradient in which all replicas take part.
    pub(crate) fn gradients_expected(&self) -> usize {
        self.expected().len()
    }

    /// To be called by all replicas before one goes backward from `loss`. A replica that has no loss, since candle keeps
    /// no graph of tensors without elements, takes part in the gradients of the others' collectives here, with zeros.
    ///
    /// It learns from the others which gradients these are and in what order: that is the order of their graphs, not of
    /// the calls.
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where not all make this call, or not the same gradients.
    pub(crate) fn join_gradients(&self, loss: Option<&Tensor>, at: &'static Location<'static>) -> Result<()> {
        let Some(member) = self.member() else { return Ok(()) };
        if self.gradients_expected() == 0 {
            return Ok(());
        }
        self.require_current("minimize")?;
        let order: Order = loss.map(|loss| self.order(loss));
        let detail = "one more loss or micro-batch, whose graph may hold collectives";
        let call = Fingerprint::new(Operation::Minimize, detail, at);
        let orders = member.exchange(call, order)?;
        if loss.is_some() {
            return Ok(());
        }
        let Some(order) = orders.iter().find_map(|order| order.as_ref().as_ref()) else { return Ok(()) };
        // Taken out, since a gradient may be long in coming and the lock is not needed for it.
        let expected = std::mem::take(&mut *self.expected());
        let joined = order.iter().filter_map(|i| expected.get(*i)).try_for_each(|e| (e.with_zeros)(self));
        *self.expected() = expected;
        joined
    }

    fn order(&self, loss: &Tensor) -> Vec<usize> {
        let expected = self.expected();
        let numbers: HashMap<_, _> = expected.iter().enumerate().map(|(i, e)| (e.result, i)).collect();
        loss.sorted_nodes().into_iter().filter_map(|node| numbers.get(&node.id()).copied()).collect()
    }
}

/// An operation of candle whose result is known already, and whose gradient is a collective.
struct WithGradient {
    context: ReplicaContext,
    leaf: usize,
    output: Tensor,
    gradient: Arc<Gradient>,
}

impl candle_core::CustomOp1 for WithGradient {
    fn name(&self) -> &'static str {
        "collective"
    }

    fn cpu_fwd(
        &self,
        _: &candle_core::CpuStorage,
        _: &candle_core::Layout,
    ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
        let output = self.output.contiguous()?;
        let (storage, layout) = output.storage_and_layout();
        match &*storage {
            candle_core::Storage::Cpu(storage) => {
                let copy = candle_core::backend::BackendStorage::try_clone(storage, layout)?;
                Ok((copy, output.shape().clone()))
            }
            _ => candle_core::bail!("gradients of collectives are for CPU tensors"),
        }
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, upstream: &Tensor) -> candle_core::Result<Option<Tensor>> {
        match (self.gradient)(self.leaf, upstream, &self.context) {
            Ok(gradient) => Ok(Some(gradient)),
            Err(error) => Err(raise(error)),
        }
    }
}
