//! A rate that decays to a final value, linearly or with a different power.

use super::{Schedule, check};
use crate::InvalidHyperparameter;

/// A learning rate of (lr₀ − end) · (1 − n / decay_steps) ^ power + end.
///
/// n is the number of finished steps, at most `decay_steps`.
///
/// With `cycle`, n is not limited. Instead, the end of the decay moves to the next multiple of `decay_steps` each time
/// it has been reached, so the rate jumps up and decays again.
#[doc(alias = "tf.keras.optimizers.schedules.PolynomialDecay")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolynomialDecay {
    /// The initial rate lr₀, at least 0.
    pub initial: f64,
    /// The number of steps until the final rate is reached.
    pub decay_steps: u64,
    /// The final rate, at least 0. 0.0001 by default, as in TensorFlow.
    pub end: f64,
    /// The exponent, at least 0. The default, 1, is a linear decay.
    pub power: f64,
    /// Whether the decay is repeated. `false` by default.
    pub cycle: bool,
}

impl PolynomialDecay {
    /// Creates a schedule that decays linearly to 0.0001.
    pub fn new(initial: f64, decay_steps: u64) -> Self {
        Self { initial, decay_steps, end: 0.0001, power: 1.0, cycle: false }
    }
}

impl Schedule for PolynomialDecay {
    fn rate(&self, finished: u64) -> f64 {
        let (n, steps) = if self.cycle {
            let cycles = finished.div_ceil(self.decay_steps.max(1)).max(1);
            (finished, self.decay_steps as f64 * cycles as f64)
        } else {
            (finished.min(self.decay_steps), self.decay_steps as f64)
        };
        (self.initial - self.end) * (1.0 - n as f64 / steps).powf(self.power) + self.end
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        let check = check("polynomial_decay", self.initial, self.decay_steps)?;
        check.not_negative("end", self.end)?;
        check.not_negative("power", self.power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let line = PolynomialDecay { end: 0.5, ..PolynomialDecay::new(1., 4) };
        assert_eq!([0, 1, 2, 4, 5, 9].map(|n| line.rate(n)), [1., 0.875, 0.75, 0.5, 0.5, 0.5]);
        let square = PolynomialDecay { power: 2., ..line };
        assert_eq!([0, 2, 4].map(|n| square.rate(n)), [1., 0.625, 0.5]);
        // After 5 steps the end is at 8: 0.5 · (1 − 5 / 8) + 0.5.
        let cycle = PolynomialDecay { cycle: true, ..line };
        assert_eq!([0, 2, 4, 5, 8, 9].map(|n| cycle.rate(n)), [1., 0.75, 0.5, 0.6875, 0.5, 0.625]);
    }
}
