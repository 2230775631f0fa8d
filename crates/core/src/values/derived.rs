//! The functions that `#[derive(Nest)]` calls: a struct of tensors is a value that is the same for all replicas.

pub use super::Parts;
use distribute_base::Result;
use distribute_tensor::Nest;

/// Returns the struct for each of `replicas` local replicas. It needs no `Clone`.
///
/// # Errors
/// None in practice: [`Nest::from_tree`] gets the structure of the struct itself.
pub fn split<N: Nest>(value: N, replicas: usize) -> Result<Vec<N>> {
    let tree = value.into_tree();
    let again =
        |_| N::from_tree(tree.clone()).map_err(distribute_base::Error::tensor(super::distributed::OPERATION));
    (0..replicas).map(again).collect()
}

/// Returns the components of the struct's leaves.
pub fn parts<N: Nest>(value: N) -> Parts {
    super::reducible::plain(value)
}
