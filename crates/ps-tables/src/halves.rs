//! Values that are stored in bf16 and updated in `f32`.

use crate::{RowLocation, RowPartition};
use distribute_optim::{StepRounding, StochasticRounding};
use serde::{Deserialize, Serialize};

/// The storage of a dense table's values in bf16: their rounding, and the rows of the variable that the table contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halves {
    /// The rounding of updated values to bf16.
    pub rounding: StochasticRounding,
    /// The partition of the variable.
    pub partition: RowPartition,
    /// The index of this shard.
    pub shard: usize,
}

impl Halves {
    /// Returns the index in the variable of the row at `index` of the shard.
    pub(crate) fn row(&self, index: usize) -> u64 {
        self.partition.row(RowLocation { shard: self.shard, row: index }) as u64
    }
}

/// Converts values to bf16. Each must be exact in bf16.
pub(crate) fn narrow(values: &[f32], halves: &mut [u16]) {
    for (half, value) in halves.iter_mut().zip(values) {
        *half = (value.to_bits() >> 16) as u16;
    }
}

/// Rounds values to the nearest bf16.
pub(crate) fn narrow_nearest(mut values: Vec<f32>, halves: &mut [u16]) {
    StochasticRounding::round_nearest(&mut values);
    narrow(&values, halves);
}

/// Converts bf16 values to `f32`, which is exact.
pub(crate) fn widen(halves: &[u16], values: &mut [f32]) {
    for (value, half) in values.iter_mut().zip(halves) {
        *value = f32::from_bits(u32::from(*half) << 16);
    }
}

/// Returns bf16 values as `f32`, which is exact.
pub(crate) fn widened(halves: &[u16]) -> Vec<f32> {
    let mut values = vec![0.; halves.len()];
    widen(halves, &mut values);
    values
}

/// Rounds the updated values of a row stochastically, and stores them.
pub(crate) fn store_row(rounding: StepRounding, row: u64, values: &mut [f32], halves: &mut [u16]) {
    rounding.round_row(row, values);
    narrow(values, halves);
}
