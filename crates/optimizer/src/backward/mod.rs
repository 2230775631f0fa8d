//! The backward pass over candle's graph, with the gradients that candle 0.11 has wrong or lacks.
//!
//! candle's own `Tensor::backward` gives other gradients than PyTorch and TensorFlow for pooling, upsampling,
//! scattering, convolutions of sequences and ties of `max`, without an error (docs/from-candle.md has the table). This
//! pass visits the same nodes in the same order, and adds up in the same order, so for all other operations its numbers
//! are candle's. It computes no gradient of what depends on no variable, and makes no zeros to add to.
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

/// Returns the gradients of a scalar with respect to all variables that it depends on.
///
/// Where this build of candle hides its graph, the gradients are those of candle's own backward, and a warning says so
/// once.
///
/// # Errors
/// candle's, and those of operations of users.
pub(crate) fn backward(loss: &Tensor) -> Result<GradStore> {
    through(Graph::get(), loss)
}

/// [`backward`] through a graph, or by candle's own.
fn through(graph: Option<Graph>, loss: &Tensor) -> Result<GradStore> {
    static WARNED: Once = Once::new();
    let Some(graph) = graph else {
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
        // The tensors that it was computed from have a graph, of which no second derivative is taken.
        let gradient = gradient.detach();
        if node.is_variable() {
            found.insert(node, gradient);
        } else if let Some(op) = graph.op(node) {
            rules::apply(op, node, gradient, &mut gradients)?;
        }
    }
    Ok(found)
}

/// The sum of the gradients that were found so far, for each node of a graph.
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
                // A user's operation may return memory that it has read, such as a variable's, which is locked while
                // that variable is updated. The gradient of a variable has memory of its own.
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};
    use std::sync::Mutex;

    #[test]
    fn a_shape_of_no_elements_has_a_gradient_of_none() {
        let x = Var::zeros((3, 0), candle_core::DType::F32, &Device::Cpu).unwrap();
        let loss = x.t().unwrap().unsqueeze(2).unwrap().sum_all().unwrap();
        assert_eq!(through(Graph::get(), &loss).unwrap().get(&x).unwrap().dims(), [3, 0]);
    }

    // INV-74
    #[test]
    fn without_access_to_the_graph_gradients_are_candles_and_one_warning_says_so() {
        let x = Var::new(&[[[[1f32, 2.], [3., 4.]]]], &Device::Cpu).unwrap();
        let loss = x.max_pool2d(2).unwrap().sum_all().unwrap();
        let of_x =
            |graph| through(graph, &loss).unwrap().get(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>();
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
