//! A backward pass over candle's graph, which also computes the gradients that are wrong or missing in candle 0.11.
//!
//! For pooling, upsampling, scattering, 1-d convolutions and ties of `max`, candle's own `Tensor::backward` silently
//! computes different gradients than PyTorch and TensorFlow (docs/reference/gradients.md contains a table). This pass
//! visits the same nodes and adds up gradients in the same order, so its results for all other operations are those of
//! candle. It computes no gradients for tensors that do not depend on a variable, and does not allocate zeros to add
//! to.
//!
//! candle keeps the operation of a node private; [`graph`] reads it. [`rules`] contains the gradients of each
//! operation. Operations on one or two elements are in `elementwise`; reductions and operations that move elements are
//! in `shapes`.

// - **INV-74** A step is made with correct gradients, for any operations of candle's graph in the model: each is
//   compared with finite differences, as is candle_transformers' `resnet18` as a whole, and
//   docs/reference/gradients.md has the results. Operations that leave no trace in that graph, such as
//   `ops::layer_norm`, have no gradient, and the first step warns. If a gradient cannot be correct, it is an error.
//   Tests: `nn/src/backward/graph.rs`, `computing/layers/of_candle.rs`,
//   `computing/layers/stock_operations.rs`.

mod elementwise;
mod graph;
mod rules;
mod shapes;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, bail};
use distribute_log::warn_or_stderr;
use graph::Graph;
use std::collections::HashMap;
use std::sync::Once;

/// Returns the gradients of a scalar with respect to all variables that it depends on.
///
/// If the graph cannot be read in this build, candle's own backward computes the gradients, and a warning is logged
/// once.
///
/// # Errors
/// Returns candle's errors, and those of custom operations.
pub fn backward(loss: &Tensor) -> Result<GradStore> {
    backward_through(Graph::get(), loss)
}

/// Acts like [`backward`], with the given handle to the graph. If `graph` is `None`, candle's own backward pass is
/// used.
fn backward_through(graph: Option<Graph>, loss: &Tensor) -> Result<GradStore> {
    static WARNED: Once = Once::new();
    let Some(graph) = graph else {
        WARNED.call_once(|| {
            warn_or_stderr(|| {
                tracing::warn!(
                    "this build lays out candle's tensors in an unknown way, so gradients come from candle's own \
                     backward, and are wrong for the operations listed in docs/reference/gradients.md; use the \
                     functions of distribute::nn for these"
                );
            });
        });
        return loss.backward();
    };
    let nodes = loss.sorted_nodes();
    let mut gradients = NodeGradients(nodes.iter().map(|node| (node.id(), None)).collect());
    gradients.add(loss, || loss.ones_like())?;
    let mut found = GradStore::default();
    for node in nodes {
        // A custom operation may return no gradient for an argument.
        let Some(gradient) = gradients.take(node) else { continue };
        // No second derivatives are taken, so the graph of the gradient is dropped.
        let gradient = gradient.detach();
        if node.is_variable() {
            found.insert(node, gradient);
        } else if let Some(op) = graph.op(node) {
            rules::apply(op, node, gradient, &mut gradients)?;
        }
    }
    Ok(found)
}

/// The sum of the gradients found so far, for each node that depends on a variable; `None` if there is none yet.
struct NodeGradients(HashMap<TensorId, Option<Tensor>>);

impl NodeGradients {
    fn take(&mut self, node: &Tensor) -> Option<Tensor> {
        self.0.get_mut(&node.id()).and_then(Option::take)
    }

    /// Adds a gradient to that of `argument` if `argument` depends on a variable. Otherwise `gradient` is not called.
    /// Returns an error if the shape or dtype of the gradient differs from that of `argument`.
    fn add(&mut self, argument: &Tensor, gradient: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        self.add_to(argument, |before| {
            let gradient = gradient()?;
            if gradient.dims() != argument.dims() || gradient.dtype() != argument.dtype() {
                bail!(
                    "a gradient is {:?}{:?}, but its argument is {:?}{:?}",
                    gradient.dtype(),
                    gradient.dims(),
                    argument.dtype(),
                    argument.dims()
                );
            }
            match before {
                Some(before) => before + gradient,
                // A custom operation may return memory that it has read, such as a variable's, which is locked while
                // that variable is updated. The gradient of a variable needs separate memory.
                None if argument.is_variable() && gradient.is_contiguous() => gradient.copy(),
                None => gradient.contiguous(),
            }
        })
    }

    /// Replaces the sum of the gradients of `argument` if `argument` depends on a variable. `sum` receives the sum so
    /// far; `None` at first.
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};
    use std::sync::Mutex;

    #[test]
    fn a_shape_of_no_elements_has_a_gradient_of_none() {
        let x = Var::zeros((3, 0), candle_core::DType::F32, &Device::Cpu).unwrap();
        let loss = x.t().unwrap().unsqueeze(2).unwrap().sum_all().unwrap();
        assert_eq!(backward_through(Graph::get(), &loss).unwrap().get(&x).unwrap().dims(), [3, 0]);
    }

    // INV-74
    #[test]
    fn without_access_to_the_graph_gradients_are_candles_and_one_warning_says_so() {
        let x = Var::new(&[[[[1f32, 2.], [3., 4.]]]], &Device::Cpu).unwrap();
        let loss = x.max_pool2d(2).unwrap().sum_all().unwrap();
        let of_x = |graph| {
            backward_through(graph, &loss).unwrap().get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>()
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(file.reopen().unwrap()));
        tracing::subscriber::with_default(log.finish(), || {
            assert_eq!(of_x(Graph::get()).unwrap(), [0., 0., 0., 1.]);
            assert_eq!(of_x(None).unwrap(), [0., 0., 0., 0.25]);
            assert_eq!(of_x(None).unwrap(), [0., 0., 0., 0.25]);
        });
        let log = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(log.matches("lays out candle's tensors in an unknown way").count(), 1, "{log}");
    }
}
