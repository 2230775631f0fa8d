//! The initial values of rows.

use crate::Result;
use distribute_cluster::fnv1a;
use distribute_tensor::DType;
use distribute_tensor::dtype::Buffer;
use distribute_tensor::random::{Distribution, Draws, RandomElement};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// An initializer of a variable. Values are functions only of (seed, name, position), so they depend neither on the
/// number of shards nor on the order in which rows are created. In a dynamic table, the id of a row replaces the
/// position.
///
/// An initializer can be serialized and sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Parts", try_from = "Parts")]
pub struct Initializer {
    seed: u64,
    /// The hash of the variable's name.
    stream: u64,
    draws: Draws,
    distribution: Distribution,
}

/// The serialized form of an initializer.
#[derive(Serialize, Deserialize)]
struct Parts {
    seed: u64,
    stream: u64,
    kind: u8,
    parameters: [f64; 2],
}

impl From<Initializer> for Parts {
    fn from(initializer: Initializer) -> Self {
        let Initializer { seed, stream, distribution, .. } = initializer;
        let (kind, parameters) = match distribution {
            Distribution::Constant(value) => (0, [value, 0.]),
            Distribution::Uniform { lo, up } => (1, [lo, up]),
            Distribution::Normal { mean, stdev } => (2, [mean, stdev]),
        };
        Self { seed, stream, kind, parameters }
    }
}

impl TryFrom<Parts> for Initializer {
    type Error = &'static str;

    fn try_from(
        Parts { seed, stream, kind, parameters: [a, b] }: Parts,
    ) -> std::result::Result<Self, Self::Error> {
        let distribution = match kind {
            0 => Distribution::Constant(a),
            1 => Distribution::Uniform { lo: a, up: b },
            2 => Distribution::Normal { mean: a, stdev: b },
            _ => return Err("an initializer of an unknown kind"),
        };
        Ok(Self::of_stream(distribution, seed, stream))
    }
}

impl Initializer {
    /// Creates an initializer with values from `distribution`. `name` is the name of the variable, which all of its
    /// shards share.
    pub fn new(distribution: Distribution, seed: u64, name: &str) -> Self {
        Self::of_stream(distribution, seed, fnv1a(name.bytes()))
    }

    fn of_stream(distribution: Distribution, seed: u64, stream: u64) -> Self {
        Self { seed, stream, draws: Draws::new(seed, stream), distribution }
    }

    /// Checks that elements of dtype `dtype` can be initialized.
    ///
    /// # Errors
    /// - [`Error::Tensor`](crate::Error::Tensor): the dtype does not support the distribution.
    pub fn check(&self, dtype: DType) -> Result<()> {
        Ok(self.distribution.check(dtype)?)
    }

    /// Fills the range `at` of `out` with values of the complete variable, from the value at position `first` on.
    pub(crate) fn fill(&self, first: u64, out: &mut Buffer, at: Range<usize>) {
        out.draw(at, self.distribution, self.draws, first);
    }

    /// Fills `out` with the initial values of the row of an id.
    pub(crate) fn fill_row<T: RandomElement>(&self, id: i64, out: &mut [T]) {
        self.distribution.fill(self.draws.at(id.cast_unsigned()), 0, out);
    }
}
