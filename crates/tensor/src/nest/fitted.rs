//! Conversion of leaves to the kind that a Rust type requires.

use crate::{Leaf, Nest, Tree};

/// Returns the tree with its host tensors converted to candle tensors on the CPU where `T` requires them. If a leaf
/// does not fit `T` for another reason, it and all later leaves are returned unchanged, and `T::from_tree` returns the
/// error.
///
/// Use this for trees that were created from a description, which does not distinguish host tensors from candle
/// tensors.
#[cfg(feature = "candle")]
pub fn fitted<T: Nest>(tree: Tree<Leaf>) -> Tree<Leaf> {
    let (mut leaves, structure) = tree.clone().flatten();
    let mut paths = Vec::with_capacity(leaves.len());
    let Ok(()) = structure.visit(&mut |path, ()| {
        paths.push(path());
        Ok::<(), std::convert::Infallible>(())
    });
    for _ in 0..leaves.len() {
        // Each attempt names the first leaf whose kind the type does not have.
        let attempt = structure.fill(leaves.clone()).and_then(T::from_tree);
        let Err(crate::Error::Structure { path, expected, .. }) = attempt else { break };
        let Some(at) = paths.iter().position(|of| *of == path) else { break };
        let (Leaf::Host(tensor), "a candle tensor") = (&leaves[at], expected.as_str()) else { break };
        let Ok(tensor) = tensor.to_candle(&candle_core::Device::Cpu) else { break };
        leaves[at] = Leaf::Candle(tensor);
    }
    structure.fill(leaves).unwrap_or(tree)
}

/// Returns the tree unchanged, because this build does not support candle tensors.
#[cfg(not(feature = "candle"))]
pub fn fitted<T: Nest>(tree: Tree<Leaf>) -> Tree<Leaf> {
    tree
}

#[cfg(all(test, feature = "candle"))]
mod tests {
    use super::*;
    use crate::HostTensor;
    use candle_core::Tensor;

    #[test]
    fn host_tensors_become_candle_tensors_where_the_type_has_these() {
        type Of = (Vec<Tensor>, HostTensor, Option<Tensor>);
        let host = || Tree::Leaf(Leaf::Host(HostTensor::vector(vec![1f32])));
        let tree = Tree::Tuple(vec![Tree::List(vec![host(), host()]), host(), host()]);
        assert!(Of::from_tree(tree.clone()).is_err());
        let (list, kept, some) = Of::from_tree(fitted::<Of>(tree)).unwrap();
        assert_eq!((list.len(), kept.len(), some.is_some()), (2, 1, true));
        // A leaf that does not fit for another reason stays unchanged.
        let other = fitted::<(Tensor,)>(host());
        assert!(matches!(other, Tree::Leaf(Leaf::Host(_))));
    }
}
