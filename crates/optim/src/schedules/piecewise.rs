//! A rate that changes at given steps.

use super::Schedule;
use crate::InvalidHyperparameter;
use crate::error::Check;

/// A piecewise constant learning rate.
///
/// The rate is `values[0]` while the number of finished steps is at most `boundaries[0]`, then `values[1]` while it
/// is at most `boundaries[1]`, and so on. After the last boundary it is the last value.
#[doc(alias = "tf.keras.optimizers.schedules.PiecewiseConstantDecay")]
#[derive(Clone, Debug, PartialEq)]
pub struct PiecewiseConstantDecay {
    /// The numbers of finished steps after which the rate changes, in ascending order.
    pub boundaries: Vec<u64>,
    /// The rates, each at least 0. There must be one more rate than boundaries.
    pub values: Vec<f64>,
}

impl PiecewiseConstantDecay {
    /// Creates a schedule with the given boundaries and rates. There must be one more rate than boundaries.
    pub fn new(boundaries: impl Into<Vec<u64>>, values: impl Into<Vec<f64>>) -> Self {
        Self { boundaries: boundaries.into(), values: values.into() }
    }
}

impl Schedule for PiecewiseConstantDecay {
    fn rate(&self, finished: u64) -> f64 {
        let piece = self.boundaries.partition_point(|boundary| *boundary < finished);
        // With too few values, `validate` fails.
        self.values.get(piece).copied().unwrap_or(f64::NAN)
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check("piecewise_constant_decay");
        for pair in self.boundaries.windows(2) {
            check.that(pair[0] < pair[1], "boundaries", pair[1] as f64, "greater than the one before")?;
        }
        let (values, pieces) = (self.values.len(), self.boundaries.len() + 1);
        check.that(values == pieces, "values", values as f64, "one more in number than boundaries")?;
        self.values.iter().try_for_each(|value| check.not_negative("values", *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let schedule = PiecewiseConstantDecay::new([2, 5], [1., 0.5, 0.1]);
        schedule.validate().unwrap();
        assert_eq!([0, 2, 3, 5, 6, 100].map(|n| schedule.rate(n)), [1., 1., 0.5, 0.5, 0.1, 0.1]);
    }
}
