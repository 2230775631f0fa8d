//! Gradients of collectives, which continue candle's graph across a result that other replicas contributed to.

use super::ReplicaContext;
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::Known;
use distribute_base::{Error, Result};
use distribute_collective::Combined;
use distribute_tensor::Leaf;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

thread_local! {
    /// The error that a collective raised inside candle's backward, which can only pass on text.
    static RAISED: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Returns the error of a collective that failed inside backward and came back as an error of candle, even if
/// the closure has wrapped its text. An earlier error that the closure has handled is not reported again; the
/// text distinguishes them.
pub fn raised(error: Error) -> Error {
    if error.blame().is_some() {
        return error;
    }
    match RAISED.take() {
        Some(raised) if error.to_string().contains(&raised.to_string()) => raised,
        _ => error,
    }
}

/// Wraps an error of this crate as one of candle, which has only its text; [`raised`] finds it again.
pub fn raise(error: Error) -> candle_core::Error {
    let text = error.to_string();
    RAISED.set(Some(error));
    candle_core::Error::msg(text)
}

/// Computes the gradient of one leaf of a call from the upstream gradient.
pub(super) type Gradient = dyn Fn(usize, &Tensor, &ReplicaContext) -> Result<Tensor> + Send + Sync;

/// Connects results to the graphs of the tensors from which they were computed.
///
/// If only other replicas' tensors have a graph, a dummy variable replaces this replica's: its loss may still
/// depend on the result, and the others wait for it to participate in the gradient.
/// the result, and the others wait for it to take part in the gradient.
pub(super) fn attach(
    context: &ReplicaContext,
    (call, at): (u64, &'static Location<'static>),
    inputs: Vec<Leaf>,
    combined: Combined,
    gradient: Arc<Gradient>,
) -> Result<Vec<Leaf>> {
    if combined.tracked.contains(&true) {
        context.forget_gradients(call, at)?;
    }
    let attach = |(leaf, ((input, output), tracked)): (usize, ((Leaf, Leaf), bool))| match (&input, &output) {
        (Leaf::Candle(x), Leaf::Candle(y)) if tracked => {
            // A sum over no elements has one element, but gradients don't pass through tensors without
            // elements.
            let gave = x.track_op() && x.sorted_nodes().iter().all(|node| node.elem_count() > 0);
            let x = if x.track_op() { x.clone() } else { Var::from_tensor(x)?.into_inner() };
            let graph = Arc::new(());
            let backward = {
                // The operation holds `graph`, which is dropped with the last graph that contains the
                // operation.
                let (context, gradient, graph) = (context.clone(), gradient.clone(), graph.clone());
                move |_: [&Tensor; 1], _: &Tensor, upstream: &Tensor| {
                    let _held = &graph;
                    gradient(leaf, upstream, &context).map(|gradient| [Some(gradient)]).map_err(raise)
                }
            };
            let result = x.apply_op1(Known::new("collective", y.clone(), backward))?;
            let (gradient, shape, dtype) = (gradient.clone(), y.shape().clone(), y.dtype());
            context.expect_gradient((call, leaf), (&result, &graph), gave, move |context| {
                gradient(leaf, &Tensor::zeros(&shape, dtype, &Device::Cpu)?, context).map(drop)
            });
            Ok(Leaf::Candle(result))
        }
        _ => Ok(output),
    };
    inputs.into_iter().zip(combined.leaves).zip(combined.tracked).enumerate().map(attach).collect()
}
