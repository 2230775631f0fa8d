//! Learning rates as functions of the step.
//!
//! The argument is the number of finished steps, which is 0 for the first step, as in TensorFlow's `iterations`.
//! Schedules have no state, so a training run that is resumed only needs that number. `lr₀` is the initial rate.
//!
//! ```
//! use distribute_optim::{Schedule, schedules::{ExponentialDecay, Warmup}};
//!
//! // Up to 0.8 in 4 steps, then halved every 10.
//! let schedule = Warmup::new(0., 4, ExponentialDecay::new(0.8, 10, 0.5));
//! schedule.validate()?;
//! assert_eq!([0, 2, 4, 14].map(|finished| schedule.rate(finished)), [0., 0.4, 0.8, 0.4]);
//! # Ok::<(), distribute_optim::InvalidHyperparameter>(())
//! ```

mod cosine;
mod exponential;
mod inverse_time;
mod piecewise;
mod polynomial;
mod warmup;

#[doc(alias = "tf.keras.optimizers.schedules.CosineDecay")]
pub use cosine::CosineDecay;
#[doc(alias = "tf.keras.optimizers.schedules.CosineDecayRestarts")]
pub use cosine::CosineDecayRestarts;
#[doc(alias = "tf.keras.optimizers.schedules.ExponentialDecay")]
pub use exponential::ExponentialDecay;
#[doc(alias = "tf.keras.optimizers.schedules.InverseTimeDecay")]
pub use inverse_time::InverseTimeDecay;
#[doc(alias = "tf.keras.optimizers.schedules.PiecewiseConstantDecay")]
pub use piecewise::PiecewiseConstantDecay;
#[doc(alias = "tf.keras.optimizers.schedules.PolynomialDecay")]
pub use polynomial::PolynomialDecay;
pub use warmup::Warmup;

use crate::InvalidHyperparameter;
use crate::error::Check;

/// A learning rate that depends only on the number of finished steps.
///
/// Closures such as `|finished: u64| 0.1 / (finished + 1) as f64` implement this trait. A number implements it as
/// well, as a constant rate.
#[doc(alias = "tf.keras.optimizers.schedules.LearningRateSchedule")]
#[doc(alias = "LearningRateSchedule")]
pub trait Schedule: Send + Sync + 'static {
    /// Returns the learning rate of the step after `finished` steps.
    fn rate(&self, finished: u64) -> f64;

    /// Checks the hyper-parameters. [`rate`](Schedule::rate) does not check them, so call this once for a schedule
    /// that a user has created.
    ///
    /// # Errors
    /// - [`InvalidHyperparameter`]: a hyper-parameter is out of range.
    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        Ok(())
    }
}

impl<F: Fn(u64) -> f64 + Send + Sync + 'static> Schedule for F {
    fn rate(&self, finished: u64) -> f64 {
        self(finished)
    }
}

/// A constant learning rate.
impl Schedule for f64 {
    fn rate(&self, _finished: u64) -> f64 {
        *self
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        Check("constant").not_negative("learning_rate", *self)
    }
}

/// Checks the hyper-parameters that most schedules have in common.
fn check(schedule: &'static str, initial: f64, decay_steps: u64) -> Result<Check, InvalidHyperparameter> {
    let check = Check(schedule);
    check.not_negative("initial_learning_rate", initial)?;
    check.that(decay_steps > 0, "decay_steps", decay_steps as f64, "at least 1")?;
    Ok(check)
}

/// Returns the number of finished steps in units of `decay_steps`, rounded down if `staircase` is `true`.
fn progress(finished: u64, decay_steps: u64, staircase: bool) -> f64 {
    if staircase {
        finished.checked_div(decay_steps).unwrap_or(0) as f64
    } else {
        finished as f64 / decay_steps as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_function_are_schedules() {
        assert_eq!((0.5.rate(0), 0.5.rate(7)), (0.5, 0.5));
        assert_eq!((|finished: u64| finished as f64).rate(7), 7.);
        assert_eq!((|_: u64| 1.).validate(), Ok(()));
        let error = f64::NAN.validate().unwrap_err().to_string();
        assert_eq!(error, "constant: learning_rate is NaN, but must be finite and at least 0");
    }

    #[test]
    fn errors_name_schedule_and_parameter() {
        let schedules: [(Box<dyn Schedule>, &str); 13] = [
            (Box::new(ExponentialDecay::new(-1., 1, 0.5)), "exponential_decay: initial_learning_rate is -1"),
            (Box::new(ExponentialDecay::new(1., 0, 0.5)), "exponential_decay: decay_steps is 0"),
            (Box::new(ExponentialDecay::new(1., 1, -0.5)), "exponential_decay: decay_rate is -0.5"),
            (Box::new(InverseTimeDecay::new(1., 1, -0.5)), "inverse_time_decay: decay_rate is -0.5"),
            (
                Box::new(PolynomialDecay { power: -1., ..PolynomialDecay::new(1., 1) }),
                "polynomial_decay: power is -1",
            ),
            (
                Box::new(PolynomialDecay { end: -1., ..PolynomialDecay::new(1., 1) }),
                "polynomial_decay: end is -1",
            ),
            (Box::new(CosineDecay { alpha: 2., ..CosineDecay::new(1., 1) }), "cosine_decay: alpha is 2"),
            (
                Box::new(CosineDecayRestarts { t_mul: 0.5, ..CosineDecayRestarts::new(1., 1) }),
                "cosine_decay_restarts: t_mul is 0.5",
            ),
            (
                Box::new(CosineDecayRestarts { m_mul: -1., ..CosineDecayRestarts::new(1., 1) }),
                "cosine_decay_restarts: m_mul is -1",
            ),
            (Box::new(Warmup::new(f64::INFINITY, 1, 0.1)), "warmup: from is inf"),
            (Box::new(Warmup::new(0., 1, -0.1)), "constant: learning_rate is -0.1"),
            (
                Box::new(PiecewiseConstantDecay::new([3, 3], [1., 2., 3.])),
                "piecewise_constant_decay: boundaries is 3",
            ),
            (Box::new(PiecewiseConstantDecay::new([3], [1.])), "piecewise_constant_decay: values is 1"),
        ];
        for (schedule, text) in schedules {
            let error = schedule.validate().unwrap_err().to_string();
            assert!(error.starts_with(text), "{error} | {text}");
        }
    }
}
