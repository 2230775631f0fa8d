//! What `#[derive(Nest)]` calls: a struct of tensors is a value that is the same for all replicas.

pub use super::Parts;
use crate::Result;
use distribute_tensor::Nest;

/// The struct for each of `replicas` local replicas, where it has no `Clone`.
///
/// # Errors
/// Those of [`Nest::from_tree`], of which the structure of the struct itself has none.
pub fn split<N: Nest>(value: N, replicas: usize) -> Result<Vec<N>> {
    let tree = value.into_tree();
    let again = |_| N::from_tree(tree.clone()).map_err(crate::Error::tensor(super::distributed::OPERATION));
    (0..replicas).map(again).collect()
}

/// The components of the struct's leaves.
pub fn parts<N: Nest>(value: N) -> Parts {
    super::reducible::plain(value)
}
