//! The rounding of updated values that are stored in bf16.

use std::ops::Range;

use distribute_tensor::Wire;
use distribute_tensor::random::Draws;
use serde::{Deserialize, Serialize};

use crate::Step;

/// The rounding of updated `f32` values to bf16, up or down at random, so that it is exact on average. Rounding to the
/// nearest number would drop all updates that are smaller than half of the distance to the next number.
///
/// The random bits are a function of (seed, stream, step, row, element) alone, and so are independent of the order and
/// the place in which rows are updated.
///
/// ```
/// use distribute_optim::{Step, StochasticRounding};
///
/// let rounding = StochasticRounding::new(7, 1);
/// // 1 + 2⁻⁹ is between 1 and 1 + 2⁻⁷, the next bf16, and is rounded up in a quarter of the steps.
/// let ups = (0..4000).filter(|finished| {
///     let mut row = [1. + 2f32.powi(-9)];
///     rounding.of_step(Step::after(*finished, 0.1)).round_row(3, &mut row);
///     row[0] > 1.
/// });
/// assert!((900..1100).contains(&ups.count()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StochasticRounding {
    seed: u64,
    stream: u64,
}

/// The rounding of one step, from [`StochasticRounding::of_step`].
#[derive(Clone, Copy, Debug)]
pub struct StepRounding(Draws);

/// The number of elements that are rounded with one random number of 64 bits: a bf16 lacks 16 bits of an `f32`.
const ELEMENTS: usize = 4;

impl StochasticRounding {
    /// Creates the rounding of a table. `stream` is usually the hash of its name.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream }
    }

    /// Returns the seed.
    pub fn seed(self) -> u64 {
        self.seed
    }

    /// Returns the rounding of one step. It depends on the number of the step, and not on its learning rate.
    pub fn of_step(self, step: Step) -> StepRounding {
        StepRounding(Draws::new(self.seed, self.stream).at(step.number()))
    }

    /// Rounds values to the nearest bf16, ties to even. This is for values that are not updated by a rule, such as
    /// initial values.
    pub fn round_nearest(values: &mut [f32]) {
        Wire::Bf16.round(values);
    }
}

impl StepRounding {
    /// Rounds the values of the row with the number or id `row`. Values that a bf16 can represent do not change, and
    /// finite values stay finite.
    pub fn round_row(self, row: u64, values: &mut [f32]) {
        let draws = self.0.at(row);
        for (position, values) in (0..).zip(values.chunks_mut(ELEMENTS)) {
            let mut bits = draws.bits(position);
            for value in values {
                *value = round(*value, bits as u32 & 0xffff);
                bits >>= 16;
            }
        }
    }

    /// Rounds the given rows of a table. `values` contains the table's elements, `width` for each row; `row` returns
    /// the number or id of the row at an index.
    pub fn round_rows(
        self,
        values: &mut [f32],
        width: usize,
        rows: Range<usize>,
        row: impl Fn(usize) -> u64,
    ) {
        for at in rows {
            self.round_row(row(at), &mut values[at * width..(at + 1) * width]);
        }
    }
}

/// Rounds a value to bf16: away from zero if adding `random` to the low 16 bits overflows them, otherwise toward zero.
/// A NaN stays a NaN, and a finite value stays finite.
fn round(value: f32, random: u32) -> f32 {
    const KEPT: u32 = 0xffff_0000;
    let bits = value.to_bits();
    if value.is_nan() {
        // NaN stays NaN, whichever of its bits are set.
        return f32::from_bits((bits | 0x40_0000) & KEPT);
    }
    let rounded = f32::from_bits(bits.wrapping_add(random) & KEPT);
    if rounded.is_finite() || value.is_infinite() { rounded } else { f32::from_bits(bits & KEPT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RuleExt, Sgd};
    use proptest::prelude::*;

    fn of_step(finished: u64) -> StepRounding {
        StochasticRounding::new(11, 22).of_step(Step::after(finished, 0.1))
    }

    proptest! {
        /// Checks that the result is one of the two neighbors, and that a bf16 does not change.
        #[test]
        fn values_are_rounded_to_a_neighbor(bits in any::<u32>(), random in 0u32..1 << 16) {
            let value = f32::from_bits(bits);
            let rounded = round(value, random);
            prop_assert_eq!(rounded.to_bits() & 0xffff, 0);
            prop_assert_eq!(round(rounded, random).to_bits(), rounded.to_bits());
            prop_assert_eq!((rounded.is_nan(), rounded.is_infinite()), (value.is_nan(), value.is_infinite()));
            if value.is_finite() {
                let down = bits & 0xffff_0000;
                prop_assert!([down, down.wrapping_add(1 << 16)].contains(&rounded.to_bits()));
                prop_assert_eq!(rounded.is_sign_negative(), value.is_sign_negative());
            }
        }
    }

    #[test]
    fn large_values_stay_finite() {
        for value in [f32::MAX, f32::MIN] {
            assert_eq!(round(value, 0xffff), f32::from_bits(value.to_bits() & 0xffff_0000));
        }
    }

    /// Checks the sum of 20,000 updates, each a thousandth of the distance to the next bf16. It equals that in f32 up
    /// to noise, whose standard deviation is less than the distance times the root of 20.
    // INV-95
    #[test]
    fn many_small_updates_are_exact_on_average_where_rounding_to_the_nearest_stalls() {
        const STEPS: u64 = 20_000;
        let distance = 2f64.powi(-7);
        let gradient = [distance as f32 / 1000.; 256];
        let [mut random, mut nearest] = [[1.5f32; 256]; 2];
        for finished in 0..STEPS {
            let step = Step::after(finished, -1.);
            Sgd.update(step, &mut random, &gradient, &mut []).unwrap();
            StochasticRounding::new(3, 4).of_step(step).round_row(0, &mut random);
            Sgd.update(step, &mut nearest, &gradient, &mut []).unwrap();
            StochasticRounding::round_nearest(&mut nearest);
        }
        assert_eq!(nearest, [1.5; 256]);
        let expected = 20. * distance;
        let errors = random.map(|value| f64::from(value) - 1.5 - expected);
        let mean = errors.iter().sum::<f64>() / 256.;
        // Five standard deviations of the mean.
        assert!(mean.abs() < 5. * distance * 20f64.sqrt() / 16., "{mean}");
        assert!(errors.iter().all(|error| error.abs() < 6. * distance * 20f64.sqrt()));
        assert!(
            errors.iter().any(|error| *error > distance) && errors.iter().any(|error| *error < -distance)
        );
    }

    #[test]
    fn seeds_streams_steps_rows_and_elements_have_different_random_bits() {
        let rounded = |rounding: StepRounding, row| {
            let mut values = [1. + 2f32.powi(-8); 64];
            rounding.round_row(row, &mut values);
            values.map(f32::to_bits)
        };
        let step = Step::after(0, 0.1);
        let first = rounded(of_step(0), 0);
        assert_eq!(first, rounded(of_step(0), 0));
        // The learning rate has no effect.
        assert_eq!(first, rounded(StochasticRounding::new(11, 22).of_step(Step::after(0, 0.7)), 0));
        assert!(first.iter().any(|bits| *bits != first[0]));
        for (what, other) in [
            ("seed", rounded(StochasticRounding::new(12, 22).of_step(step), 0)),
            ("stream", rounded(StochasticRounding::new(11, 23).of_step(step), 0)),
            ("step", rounded(of_step(1), 0)),
            ("row", rounded(of_step(0), 1)),
        ] {
            assert_ne!(first, other, "{what}");
        }
        // Rows of a table are rounded as single rows are.
        let mut table = [1. + 2f32.powi(-8); 6];
        let mut rows = table;
        of_step(4).round_rows(&mut table, 2, 1..3, |at| 100 + at as u64);
        of_step(4).round_row(101, &mut rows[2..4]);
        of_step(4).round_row(102, &mut rows[4..6]);
        assert_eq!(table, rows);
    }
}
