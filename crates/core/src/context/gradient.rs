//! Gradients of collectives. They extend candle's graph to results that other replicas contributed to.

use super::ReplicaContext;
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::PrecomputedOp;
use distribute_base::{Error, Result};
use distribute_collective::Combined;
use distribute_tensor::Leaf;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

thread_local! {
    /// The original error of a collective that failed inside candle's backward. It is kept here because candle's error
    /// type can hold only text.
    static COLLECTIVE_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Returns the original error of a collective that failed inside backward, if candle returned `error` in its place;
/// otherwise `error`. This works even if the closure wrapped the error's text. An earlier error that the closure
/// handled is not returned, because its text is not part of the new error's text.
pub fn unwrap_candle_error(error: Error) -> Error {
    if error.blame().is_some() {
        return error;
    }
    match COLLECTIVE_ERROR.take() {
        Some(original) if error.to_string().contains(&original.to_string()) => original,
        _ => error,
    }
}

/// Converts an error of this crate to candle's error, which holds only text. Stores the original on this thread, from
/// which [`unwrap_candle_error`] takes it.
pub fn to_candle_error(error: Error) -> candle_core::Error {
    let text = error.to_string();
    COLLECTIVE_ERROR.set(Some(error));
    candle_core::Error::msg(text)
}

/// A function that computes the gradient of one leaf of a call from the upstream gradient.
pub(super) type Gradient = dyn Fn(usize, &Tensor, &ReplicaContext) -> Result<Tensor> + Send + Sync;

/// Connects each result of a call to the graph of this replica's input tensor. Results for which no replica's tensor
/// has a graph are returned unchanged.
///
/// If only other replicas' tensors have a graph, this replica's tensor is replaced by a dummy variable. This replica's
/// loss may still depend on the result, and the other replicas wait for this replica in the gradient's collective.
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
            let contributed = x.track_op() && x.sorted_nodes().iter().all(|node| node.elem_count() > 0);
            let x = if x.track_op() { x.clone() } else { Var::from_tensor(x)?.into_inner() };
            let graph = Arc::new(());
            let backward = {
                // The operation holds `graph`, which is dropped with the last graph that contains the
                // operation.
                let (context, gradient, graph) = (context.clone(), gradient.clone(), graph.clone());
                move |_: [&Tensor; 1], _: &Tensor, upstream: &Tensor| {
                    let _held = &graph;
                    gradient(leaf, upstream, &context)
                        .map(|gradient| [Some(gradient)])
                        .map_err(to_candle_error)
                }
            };
            let result = x.apply_op1(PrecomputedOp::new("collective", y.clone(), backward))?;
            let (gradient, shape, dtype) = (gradient.clone(), y.shape().clone(), y.dtype());
            context.expect_gradient((call, leaf), (&result, &graph), contributed, move |context| {
                gradient(leaf, &Tensor::zeros(&shape, dtype, &Device::Cpu)?, context).map(drop)
            });
            Ok(Leaf::Candle(result))
        }
        _ => Ok(output),
    };
    inputs.into_iter().zip(combined.leaves).zip(combined.tracked).enumerate().map(attach).collect()
}
