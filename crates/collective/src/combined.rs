//! The result of a collective operation.

use distribute_tensor::Leaf;

/// The result of a collective operation, which is the same on every member.
#[derive(Clone, Debug)]
pub struct Combined {
    /// The results, in the order of the leaves.
    pub leaves: Vec<Leaf>,
    /// Whether gradients flow through each leaf on some replica of some process. If so, all replicas participate in its
    /// gradient, even those on which the leaf depends on no variable.
    pub tracked: Vec<bool>,
}

/// Returns, for each leaf, whether gradients flow through it on some replica.
pub(crate) fn tracked(all: &[&[Leaf]]) -> Vec<bool> {
    let count = all.first().map_or(0, |leaves| leaves.len());
    (0..count).map(|leaf| all.iter().any(|leaves| leaves[leaf].is_tracked())).collect()
}
