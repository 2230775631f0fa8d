//! Rates that decay along half a period of a cosine, once or repeatedly.

use super::{Schedule, check};
use crate::InvalidHyperparameter;
use crate::error::Check;
use std::f64::consts::PI;

/// A learning rate of lr₀ · ((1 − alpha) · (1 + cos(π · n / decay_steps)) / 2 + alpha).
///
/// n is the number of finished steps, at most `decay_steps`.
///
/// To get TensorFlow's `warmup_target` and `warmup_steps`, use this schedule in a [`Warmup`](super::Warmup).
#[doc(alias = "tf.keras.optimizers.schedules.CosineDecay")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineDecay {
    /// The initial rate lr₀, at least 0.
    pub initial: f64,
    /// The number of steps until the final rate is reached.
    pub decay_steps: u64,
    /// The final rate as a fraction of lr₀, from 0 to 1. 0 by default.
    pub alpha: f64,
}

impl CosineDecay {
    /// Creates a schedule that decays to 0.
    pub fn new(initial: f64, decay_steps: u64) -> Self {
        Self { initial, decay_steps, alpha: 0.0 }
    }
}

impl Schedule for CosineDecay {
    fn rate(&self, finished: u64) -> f64 {
        let done = finished.min(self.decay_steps) as f64 / self.decay_steps as f64;
        fall(self.initial, 1.0, done, self.alpha)
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        check_alpha(check("cosine_decay", self.initial, self.decay_steps)?, self.alpha)
    }
}

/// A [`CosineDecay`] that restarts when it ends. Each decay is `t_mul` times as long and `m_mul` times as high as the
/// previous one.
#[doc(alias = "tf.keras.optimizers.schedules.CosineDecayRestarts")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineDecayRestarts {
    /// The initial rate lr₀, at least 0.
    pub initial: f64,
    /// The length of the first decay, in steps.
    pub first_decay_steps: u64,
    /// The factor between the lengths of consecutive decays, at least 1. 2 by default.
    pub t_mul: f64,
    /// The factor between the heights of consecutive decays, at least 0. 1 by default. The height of a decay is the
    /// difference between its initial and its final rate.
    pub m_mul: f64,
    /// The final rate of each decay as a fraction of lr₀, from 0 to 1. 0 by default.
    pub alpha: f64,
}

impl CosineDecayRestarts {
    /// Creates a schedule with decays from lr₀ to 0, each twice as long as the previous one.
    pub fn new(initial: f64, first_decay_steps: u64) -> Self {
        Self { initial, first_decay_steps, t_mul: 2.0, m_mul: 1.0, alpha: 0.0 }
    }

    /// Returns the start of the decay after `falls` decays, in units of the length of the first one.
    fn start(&self, falls: f64) -> f64 {
        if self.t_mul == 1.0 { falls } else { (self.t_mul.powf(falls) - 1.0) / (self.t_mul - 1.0) }
    }
}

impl Schedule for CosineDecayRestarts {
    fn rate(&self, finished: u64) -> f64 {
        let done = finished as f64 / self.first_decay_steps as f64;
        let mut falls = match self.t_mul {
            1.0 => done.floor(),
            t_mul => ((1.0 + done * (t_mul - 1.0)).ln() / t_mul.ln()).floor(),
        };
        // At a restart, logarithms may be off by a rounding error.
        if self.start(falls + 1.0) <= done {
            falls += 1.0;
        } else if self.start(falls) > done {
            falls -= 1.0;
        }
        let done = (done - self.start(falls)) / self.t_mul.powf(falls);
        fall(self.initial, self.m_mul.powf(falls), done, self.alpha)
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check("cosine_decay_restarts");
        check.not_negative("initial_learning_rate", self.initial)?;
        let steps = self.first_decay_steps;
        check.that(steps > 0, "first_decay_steps", steps as f64, "at least 1")?;
        check.that(
            self.t_mul.is_finite() && self.t_mul >= 1.0,
            "t_mul",
            self.t_mul,
            "finite and at least 1",
        )?;
        check.not_negative("m_mul", self.m_mul)?;
        check_alpha(check, self.alpha)
    }
}

fn check_alpha(check: Check, alpha: f64) -> Result<(), InvalidHyperparameter> {
    check.that((0.0..=1.0).contains(&alpha), "alpha", alpha, "from 0 to 1")
}

/// Returns the rate after the fraction `done` of a decay to `alpha` times `initial`. `height` is the height of the
/// decay relative to that of the first one.
fn fall(initial: f64, height: f64, done: f64, alpha: f64) -> f64 {
    let cosine = 0.5 * height * (1.0 + (PI * done).cos());
    initial * ((1.0 - alpha) * cosine + alpha)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(schedule: &dyn Schedule, expected: &[(u64, f64)]) {
        schedule.validate().unwrap();
        for (finished, rate) in expected {
            let got = schedule.rate(*finished);
            assert!((got - rate).abs() < 1e-15, "{finished}: {got}, not {rate}");
        }
    }

    #[test]
    fn once_by_hand() {
        // cos 60° = 0.5, cos 90° = 0, cos 120° = −0.5
        near(&CosineDecay::new(1., 6), &[(0, 1.), (2, 0.75), (3, 0.5), (4, 0.25), (6, 0.), (9, 0.)]);
        let raised = CosineDecay { alpha: 0.5, ..CosineDecay::new(1., 6) };
        near(&raised, &[(0, 1.), (2, 0.875), (3, 0.75), (6, 0.5), (9, 0.5)]);
    }

    #[test]
    fn restarts_by_hand() {
        // Decays of 6, 12 and 24 steps, which start at 0, 6 and 18 with rates 1, 0.5 and 0.25.
        let schedule = CosineDecayRestarts { m_mul: 0.5, ..CosineDecayRestarts::new(1., 6) };
        near(
            &schedule,
            &[(0, 1.), (2, 0.75), (3, 0.5), (6, 0.5), (10, 0.375), (12, 0.25), (18, 0.25), (30, 0.125)],
        );
        // Decays of equal lengths.
        let schedule = CosineDecayRestarts { t_mul: 1., ..CosineDecayRestarts::new(1., 6) };
        near(&schedule, &[(0, 1.), (3, 0.5), (6, 1.), (8, 0.75), (12, 1.), (600, 1.)]);
    }

    #[test]
    fn every_restart_is_at_its_step() {
        for (first, t_mul) in [(1, 2.), (3, 3.), (10, 1.5), (7, 2.)] {
            let schedule = CosineDecayRestarts { t_mul, ..CosineDecayRestarts::new(1., first) };
            let (mut start, mut length) = (0., first as f64);
            while start < 1e6 {
                if f64::fract(start) == 0. {
                    let got = schedule.rate(start as u64);
                    assert!((got - 1.).abs() < 1e-9, "{first} {t_mul}: {got} at {start}");
                }
                start += length;
                length *= t_mul;
            }
        }
    }
}
