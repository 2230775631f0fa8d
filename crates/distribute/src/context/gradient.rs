//! Gradients of collectives: candle's graph goes on behind a result that other replicas took part in.

use super::ReplicaContext;
use crate::{Error, Result};
use distribute_tensor::Leaf;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// The error that a collective raised inside of candle's backward, which can only pass on text.
    static RAISED: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The error behind one of candle's: where a collective failed inside of backward, what it said. An earlier one that
/// the closure has dealt with is not told again: candle's text tells them apart.
pub(crate) fn raised(error: Error) -> Error {
    let Error::Candle(candle) = &error else { return error };
    let text = candle.to_string();
    match RAISED.take() {
        Some(raised) if text.contains(&raised.to_string()) => raised,
        _ => error,
    }
}

/// Makes the gradient of one leaf of a call out of the upstream one.
pub(super) type Gradient =
    dyn Fn(usize, &candle_core::Tensor, &ReplicaContext) -> Result<candle_core::Tensor> + Send + Sync;

/// Ties results to the graphs of the tensors they were made of, where those have one.
pub(super) fn attach(
    context: &ReplicaContext,
    inputs: Vec<Leaf>,
    outputs: Vec<Leaf>,
    gradient: Arc<Gradient>,
) -> Result<Vec<Leaf>> {
    let attach = |(leaf, (input, output)): (usize, (Leaf, Leaf))| match (&input, &output) {
        (Leaf::Candle(x), Leaf::Candle(y)) if x.track_op() => {
            let (context, gradient) = (context.clone(), gradient.clone());
            Ok(Leaf::Candle(x.apply_op1(WithGradient { context, leaf, output: y.clone(), gradient })?))
        }
        _ => Ok(output),
    };
    inputs.into_iter().zip(outputs).enumerate().map(attach).collect()
}

/// An operation of candle whose result is known already, and whose gradient is a collective.
struct WithGradient {
    context: ReplicaContext,
    leaf: usize,
    output: candle_core::Tensor,
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

    fn bwd(
        &self,
        _: &candle_core::Tensor,
        _: &candle_core::Tensor,
        upstream: &candle_core::Tensor,
    ) -> candle_core::Result<Option<candle_core::Tensor>> {
        match (self.gradient)(self.leaf, upstream, &self.context) {
            Ok(gradient) => Ok(Some(gradient)),
            Err(error) => {
                let text = error.to_string();
                RAISED.set(Some(error));
                Err(candle_core::Error::msg(text))
            }
        }
    }
}
