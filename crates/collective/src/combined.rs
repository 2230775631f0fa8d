//! What a collective gives each member.

use distribute_tensor::Leaf;
use std::sync::Arc;

/// What a collective made of all members' leaves.
#[derive(Debug)]
pub struct Combined {
    /// The results, in the order of the leaves.
    pub leaves: Vec<Leaf>,
    /// For each leaf, whether gradients flow through it on some member. All members then have to take part in its
    /// gradient, also those on which nothing depends on a variable.
    pub tracked: Vec<bool>,
}

impl Combined {
    pub(crate) fn new(leaves: Vec<Leaf>, all: &[Arc<Vec<Leaf>>]) -> Self {
        let tracked = |leaf: usize| all.iter().any(|leaves| leaves.get(leaf).is_some_and(Leaf::is_tracked));
        Self { tracked: (0..leaves.len()).map(tracked).collect(), leaves }
    }
}
