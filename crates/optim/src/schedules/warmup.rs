//! A rate that rises linearly before a different schedule begins.

use super::Schedule;
use crate::InvalidHyperparameter;
use crate::error::Check;

/// A learning rate that rises linearly from `from` to the first rate of `then`, and then follows that schedule.
///
/// TensorFlow supports this only in `CosineDecay`, with `warmup_target` and `warmup_steps`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup<S> {
    /// The rate of the first step, at least 0. It has no effect if `steps` is 0.
    pub from: f64,
    /// The number of steps in which the rate rises.
    pub steps: u64,
    /// The schedule after the rise. Its first step is the one after the rise.
    pub then: S,
}

impl<S: Schedule> Warmup<S> {
    /// Creates a schedule whose rate rises from `from` to the first rate of `then` in `steps` steps.
    pub fn new(from: f64, steps: u64, then: S) -> Self {
        Self { from, steps, then }
    }
}

impl<S: Schedule> Schedule for Warmup<S> {
    fn rate(&self, finished: u64) -> f64 {
        match finished.checked_sub(self.steps) {
            Some(finished) => self.then.rate(finished),
            None => self.from + (self.then.rate(0) - self.from) * (finished as f64 / self.steps as f64),
        }
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        Check("warmup").not_negative("from", self.from)?;
        self.then.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::PolynomialDecay;

    #[test]
    fn by_hand() {
        let schedule = Warmup::new(0.5, 4, PolynomialDecay { end: 0., ..PolynomialDecay::new(1., 2) });
        schedule.validate().unwrap();
        assert_eq!([0, 1, 2, 4, 5, 6, 7].map(|n| schedule.rate(n)), [0.5, 0.625, 0.75, 1., 0.5, 0., 0.]);
        assert_eq!(Warmup::new(0.5, 0, 0.25).rate(0), 0.25);
        // Consecutive warm-ups.
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| Warmup::new(0., 2, Warmup::new(1., 2, 3.)).rate(n)),
            [0., 0.5, 1., 2., 3.]
        );
    }
}
