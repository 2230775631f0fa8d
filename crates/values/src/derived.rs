//! Functions for the code that `#[derive(Nest)]` generates. They treat a struct of tensors as a value that is equal on
//! all replicas.

pub use super::Parts;
use distribute_base::Result;
use distribute_tensor::Nest;

/// Returns one copy of the struct per local replica. The struct need not implement `Clone`.
///
/// # Errors
/// Never returns an error in practice, because [`Nest::from_tree`] always receives the structure of the struct itself.
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
