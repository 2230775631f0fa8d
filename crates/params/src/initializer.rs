//! Where the first values of rows come from.

use crate::Result;
use distribute_cluster::fnv1a;
use distribute_tensor::DType;
use distribute_tensor::dtype::Buffer;
use distribute_tensor::random::{Distribution, Drawn, Draws};
use std::ops::Range;

/// Draws the initial values of a variable: functions of (seed, name, position) alone, so that neither the number of shards nor
/// the order in which rows are made plays a role.
///
/// The rows of a dynamic table have the id in place of the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Initializer {
    draws: Draws,
    distribution: Distribution,
}

impl Initializer {
    /// Draws from `distribution` for the variable `name`, which is the same for all of its shards.
    pub fn new(distribution: Distribution, seed: u64, name: &str) -> Self {
        Self { draws: Draws::new(seed, fnv1a(name.bytes())), distribution }
    }

    /// Whether elements of this dtype can be drawn.
    pub fn check(&self, dtype: DType) -> Result<()> {
        Ok(self.distribution.check(dtype)?)
    }

    /// Fills the elements `at` of `out` with those from position `first` of the whole variable on.
    pub(crate) fn fill(&self, first: u64, out: &mut Buffer, at: Range<usize>) {
        out.draw(at, self.distribution, self.draws, first);
    }

    /// Fills `out` with the row of an id.
    pub(crate) fn fill_row<T: Drawn>(&self, id: i64, out: &mut [T]) {
        self.distribution.fill(self.draws.at(id.cast_unsigned()), 0, out);
    }
}
