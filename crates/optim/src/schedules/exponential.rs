//! A rate that decays by a constant factor.

use super::{Schedule, check, progress};
use crate::InvalidHyperparameter;

/// A learning rate of lr₀ · decay_rate ^ (n / decay_steps).
///
/// n is the number of finished steps. With `staircase`, n / decay_steps is rounded down.
#[doc(alias = "tf.keras.optimizers.schedules.ExponentialDecay")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialDecay {
    /// The initial rate lr₀, at least 0.
    pub initial: f64,
    /// The number of steps in which the rate decays by the factor `decay_rate`.
    pub decay_steps: u64,
    /// The factor of the decay, at least 0.
    pub decay_rate: f64,
    /// Whether the rate changes only every `decay_steps` steps. `false` by default.
    pub staircase: bool,
}

impl ExponentialDecay {
    /// Creates a schedule whose rate decays in every step.
    pub fn new(initial: f64, decay_steps: u64, decay_rate: f64) -> Self {
        Self { initial, decay_steps, decay_rate, staircase: false }
    }
}

impl Schedule for ExponentialDecay {
    fn rate(&self, finished: u64) -> f64 {
        self.initial * self.decay_rate.powf(progress(finished, self.decay_steps, self.staircase))
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        check("exponential_decay", self.initial, self.decay_steps)?
            .not_negative("decay_rate", self.decay_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let smooth = ExponentialDecay::new(0.8, 2, 0.25);
        // 0.25 ^ (1 / 2) = 0.5
        assert_eq!([0, 1, 2, 3, 4].map(|n| smooth.rate(n)), [0.8, 0.4, 0.2, 0.1, 0.05]);
        let stairs = ExponentialDecay { staircase: true, ..smooth };
        assert_eq!([0, 1, 2, 3, 4].map(|n| stairs.rate(n)), [0.8, 0.8, 0.2, 0.2, 0.05]);
    }
}
