//! The backward pass over candle's graph, with the gradients that candle 0.11 has wrong or lacks.
//!
//! candle's own `Tensor::backward` gives other gradients than PyTorch and TensorFlow for pooling, upsampling, scattering, convolutions of
//! sequences and ties of `max`, without an error (docs/from-candle.md has the table). This pass visits the same nodes in the same order, and
//! adds up in the same order, so for all other operations its numbers are candle's. It computes no gradient of what depends on no
//! variable, and makes no zeros to add to.
//!
//! The operation of a node is private in candle; [`graph`] reads it. [`rules`] has the gradients of each operation.

mod elementwise;
mod graph;
mod rules;
mod shapes;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, bail};
use distribute_log::heard;
use graph::Graph;
use std::collections::HashMap;
use std::sync::Once;

/// The gradients of a scalar with respect to all variables that it depends on.
///
/// Where this build of candle hides its graph, the gradients are those of candle's own backward, and a warning says so once.
///
/// # Errors
/// candle's, and those of operations of users.
pub(crate) fn backward(loss: &Tensor) -> Result<GradStore> {
    static WARNED: Once = Once::new();
    let Some(graph) = Graph::get() else {
        WARNED.call_once(|| {
            heard(|| {
                tracing::warn!(
                    "this build lays out candle's tensors in an unknown way, so gradients are those of candle's own backward, and wrong for \
                     the operations listed in docs/from-candle.md; use the functions of distribute::nn for these"
                );
            });
        });
        return loss.backward();
    };
    let nodes = loss.sorted_nodes();
    let mut gradients = Gradients(nodes.iter().map(|node| (node.id(), None)).collect());
    gradients.add(loss, || loss.ones_like())?;
    let mut found = GradStore::default();
    for node in nodes {
        // Without one, an operation of a user's has given none.
        let Some(gradient) = gradients.take(node) else { continue };
        // What it was computed from has a graph, which nobody goes back through.
        let gradient = gradient.detach();
        if node.is_variable() {
            found.insert(node, gradient);
        } else if let Some(op) = graph.op(node) {
            rules::apply(op, node, gradient, &mut gradients)?;
        }
    }
    Ok(found)
}

/// For each node of a graph the sum of the gradients that were found so far.
struct Gradients(HashMap<TensorId, Option<Tensor>>);

impl Gradients {
    fn take(&mut self, node: &Tensor) -> Option<Tensor> {
        self.0.get_mut(&node.id()).and_then(Option::take)
    }

    /// Adds a gradient of `argument`, if it depends on a variable. Otherwise the gradient is not computed.
    fn add(&mut self, argument: &Tensor, gradient: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        self.add_to(argument, |before| {
            let gradient = gradient()?;
            if gradient.dims() != argument.dims() || gradient.dtype() != argument.dtype() {
                bail!(
                    "a gradient {:?}{:?} is not of the shape and dtype of its argument, {:?}{:?}",
                    gradient.dtype(),
                    gradient.dims(),
                    argument.dtype(),
                    argument.dims()
                );
            }
            match before {
                Some(before) => before + gradient,
                // An operation of a user's may give what it has read, which must not become the gradient of a variable: its memory is
                // locked where that variable is updated.
                None if argument.is_variable() && gradient.is_contiguous() => gradient.copy(),
                None => gradient.contiguous(),
            }
        })
    }

    /// Replaces the sum of the gradients of `argument`, `None` before the first one, if it depends on a variable.
    fn add_to(
        &mut self,
        argument: &Tensor,
        sum: impl FnOnce(Option<Tensor>) -> Result<Tensor>,
    ) -> Result<()> {
        if let Some(entry) = self.0.get_mut(&argument.id()) {
            let before = entry.take();
            *entry = Some(sum(before)?);
        }
        Ok(())
    }
}
