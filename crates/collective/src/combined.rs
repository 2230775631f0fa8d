//! The result of a collective operation.

use distribute_tensor::Leaf;

/// The result of a collective operation, which is the same on every member.
#[derive(Clone, Debug)]
pub struct Combined {
    /// The resulting leaves, in the order of the arguments.
    pub leaves: Vec<Leaf>,
    /// Whether gradients flow through each leaf on some replica of some process. All replicas then participate in the
    /// leaf's gradient, even those on which it depends on no variable.
    pub tracked: Vec<bool>,
}

/// Returns, for each leaf, whether gradients flow through it on some replica.
pub(crate) fn tracked(all: &[&[Leaf]]) -> Vec<bool> {
    let count = all.first().map_or(0, |leaves| leaves.len());
    (0..count).map(|leaf| all.iter().any(|leaves| leaves[leaf].is_tracked())).collect()
}
