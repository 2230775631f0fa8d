//! The form in which the values of tables are stored.

use distribute_cluster::fnv1a;
use distribute_optim::StochasticRounding;

/// The form in which the values of a table are stored.
///
/// ```
/// use distribute::strategy::{RowFormat, TableHosts, TableOptions};
/// let options = TableOptions { format: RowFormat::Bf16 { seed: 7 }, ..TableHosts::Workers.into() };
/// let builder = distribute::MultiWorkerMirroredStrategy::builder().tables(options);
/// # let _ = builder;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RowFormat {
    /// Values have the dtype of the table.
    #[default]
    Full,
    /// Values of `f32` tables are stored and sent in bf16: in half of the memory and half of the bytes. The program
    /// still computes with `f32`, and gradients and slots remain `f32`. Updates are computed in `f32` and then rounded
    /// up or down at random. So an update that is smaller than the distance to the next bf16 is not lost: on average,
    /// it is exact.
    ///
    /// The random bits depend on the seed, the name of the table, the number of the step, the row and the element, so
    /// results are bit-identical for all placements of the table. Initial, assigned and restored values are rounded to
    /// the nearest. Tables of `f64` keep their dtype.
    #[doc(alias = "stochastic_rounding")]
    Bf16 {
        /// The seed of the random bits.
        seed: u64,
    },
}

impl RowFormat {
    /// Returns the rounding of the table with the given name; `None` if its values have the dtype of the table.
    #[doc(hidden)]
    pub fn rounding(self, table: &str) -> Option<StochasticRounding> {
        match self {
            Self::Full => None,
            Self::Bf16 { seed } => Some(StochasticRounding::new(seed, fnv1a(table.bytes()))),
        }
    }
}
