//! A rate that decays inversely with the number of steps.

use super::{Schedule, check, progress};
use crate::InvalidHyperparameter;

/// A learning rate of lr₀ / (1 + decay_rate · n / decay_steps).
///
/// n is the number of finished steps. With `staircase`, n / decay_steps is rounded down.
#[doc(alias = "tf.keras.optimizers.schedules.InverseTimeDecay")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InverseTimeDecay {
    /// The initial rate lr₀, at least 0.
    pub initial: f64,
    /// The number of steps in a unit of time.
    pub decay_steps: u64,
    /// The increase of the divisor per unit of time, at least 0.
    pub decay_rate: f64,
    /// Whether the rate changes only every `decay_steps` steps. `false` by default.
    pub staircase: bool,
}

impl InverseTimeDecay {
    /// Creates a schedule whose rate decays in every step.
    pub fn new(initial: f64, decay_steps: u64, decay_rate: f64) -> Self {
        Self { initial, decay_steps, decay_rate, staircase: false }
    }
}

impl Schedule for InverseTimeDecay {
    fn rate(&self, finished: u64) -> f64 {
        self.initial / (1.0 + self.decay_rate * progress(finished, self.decay_steps, self.staircase))
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        check("inverse_time_decay", self.initial, self.decay_steps)?
            .not_negative("decay_rate", self.decay_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let smooth = InverseTimeDecay::new(1., 2, 2.);
        // 1 / (1 + 2 · n / 2)
        assert_eq!([0, 1, 3, 4].map(|n| smooth.rate(n)), [1., 0.5, 0.25, 0.2]);
        let stairs = InverseTimeDecay { staircase: true, ..smooth };
        assert_eq!([0, 1, 2, 3, 4].map(|n| stairs.rate(n)), [1., 1., 1. / 3., 1. / 3., 0.2]);
    }
}
