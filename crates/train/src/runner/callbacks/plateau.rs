//! [`ReduceOnPlateau`]: a lower learning rate if the validation loss no longer improves.

use super::super::{Epoch, History};
use super::{Callback, CallbackContext};
use distribute_base::{Error, Result};
use std::ops::ControlFlow;

/// A callback that multiplies the learning rate by a factor if the validation loss has not improved in a number of
/// consecutive validations.
///
/// It decides from the [`History`] alone, so a run that resumes from a backup continues the count. Epochs without a
/// validation do not count. The optimizer must have no schedule.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::runner::{ReduceOnPlateau, Trainer};
/// let halves = ReduceOnPlateau::new(0.5, 3).min_delta(1e-4).min_learning_rate(1e-5);
/// let trainer = Trainer::new(8).epochs(30).callback(halves);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.callbacks.ReduceLROnPlateau")]
#[doc(alias = "ReduceLROnPlateau")]
#[derive(Clone, Copy, Debug)]
pub struct ReduceOnPlateau {
    factor: f64,
    patience: usize,
    min_delta: f64,
    cooldown: usize,
    min_learning_rate: f64,
}

impl ReduceOnPlateau {
    /// Creates a callback that multiplies the rate by `factor` after `patience` validations without an improvement.
    /// Keras' defaults are 0.1 and 10.
    pub fn new(factor: f64, patience: usize) -> Self {
        Self { factor, patience, min_delta: 1e-4, cooldown: 0, min_learning_rate: 0. }
    }

    /// Sets the amount by which the validation loss must fall below its previous minimum to be considered an
    /// improvement; 0.0001 by default, as in Keras.
    pub fn min_delta(mut self, loss: f64) -> Self {
        self.min_delta = loss;
        self
    }

    /// Sets the number of validations after a reduction that are ignored when validations without an improvement are
    /// counted; 0 by default.
    pub fn cooldown(mut self, validations: usize) -> Self {
        self.cooldown = validations;
        self
    }

    /// Sets the minimum learning rate: this callback never reduces the rate below it. The default is 0.
    #[doc(alias = "min_lr")]
    pub fn min_learning_rate(mut self, rate: f64) -> Self {
        self.min_learning_rate = rate;
        self
    }

    fn check(&self, has_validation: bool) -> Result<()> {
        let reason = if !has_validation {
            "there are no examples to validate with; set them with Datasets::validation".to_owned()
        } else if !(self.factor > 0. && self.factor < 1.) {
            format!("the factor must be greater than 0 and less than 1, not {}", self.factor)
        } else if self.patience == 0 {
            "a patience of 0 validations; use at least 1".to_owned()
        } else if !(self.min_delta >= 0. && self.min_delta.is_finite()) {
            format!("{} is not a minimum difference", self.min_delta)
        } else if !(self.min_learning_rate >= 0. && self.min_learning_rate.is_finite()) {
            format!("{} is not a learning rate", self.min_learning_rate)
        } else {
            return Ok(());
        };
        Err(Error::invalid("ReduceOnPlateau", reason))
    }

    /// Returns whether the rate is to be reduced after the last epoch of the history.
    fn is_reduced(&self, history: &History) -> bool {
        let (mut least, mut since, mut paused, mut is_reduced) = (f64::INFINITY, 0, 0, false);
        for loss in history.epochs.iter().map(|epoch| epoch.validation_loss) {
            is_reduced = false;
            let Some(loss) = loss else { continue };
            if paused > 0 {
                (paused, since) = (paused - 1, 0);
            }
            // False for NaN. Infinity minus any number is infinity.
            if loss < least - self.min_delta {
                (least, since) = (loss, 0);
            } else if paused == 0 {
                since += 1;
                if since >= self.patience {
                    (since, paused, is_reduced) = (0, self.cooldown, true);
                }
            }
        }
        is_reduced
    }
}

impl Callback for ReduceOnPlateau {
    fn on_begin(&self, context: &CallbackContext<'_>) -> Result<()> {
        self.check(context.has_validation())?;
        // With a schedule, this is an error now and not after the first epochs.
        context.set_learning_rate(context.learning_rate())
    }

    fn on_epoch(&self, context: &CallbackContext<'_>, epoch: &Epoch) -> Result<ControlFlow<()>> {
        // The rate with which the epoch was trained: this call may be repeated after a failure.
        let before = epoch.learning_rate;
        if before > self.min_learning_rate && self.is_reduced(context.history()) {
            context.set_learning_rate((before * self.factor).max(self.min_learning_rate))?;
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the indices of the validations after which the rate is reduced.
    fn reduced(callback: ReduceOnPlateau, losses: &[f64]) -> Vec<usize> {
        let epoch = |(epoch, loss): (usize, &f64)| Epoch {
            epoch,
            steps: 1,
            loss: 1.,
            validation_loss: Some(*loss),
            learning_rate: 0.1,
        };
        let epochs: Vec<Epoch> = losses.iter().enumerate().map(epoch).collect();
        let until = |end: &usize| History { epochs: epochs[..=*end].to_vec(), ..Default::default() };
        (0..losses.len()).filter(|end| callback.is_reduced(&until(end))).collect()
    }

    // The expected numbers are those of Keras 3.15, whose callback was called with the same losses.
    #[test]
    fn the_rate_is_reduced_after_the_validations_after_which_keras_reduces_it() {
        let losses =
            [1., 0.9, 0.95, 0.93, 0.91, 0.8, 0.8, 0.79995, 0.7, 0.75, f64::NAN, 0.72, 0.71, 0.74, 0.69];
        let new = ReduceOnPlateau::new;
        for (callback, expected) in [
            (new(0.5, 1), &[2, 3, 4, 6, 7, 9, 10, 11, 12, 13][..]),
            (new(0.5, 2), &[3, 7, 10, 12]),
            (new(0.5, 2).min_delta(0.), &[3, 10, 12]),
            (new(0.5, 2).cooldown(1), &[3, 7, 10, 12]),
            (new(0.5, 1).cooldown(3), &[2, 6, 9, 12]),
        ] {
            assert_eq!(reduced(callback, &losses), expected, "{callback:?}");
        }
    }

    #[test]
    fn an_epoch_without_a_validation_reduces_nothing() {
        let epoch =
            |epoch, validation_loss| Epoch { epoch, steps: 1, loss: 1., validation_loss, learning_rate: 0.1 };
        let mut history =
            History { epochs: vec![epoch(0, Some(1.)), epoch(1, Some(1.))], ..Default::default() };
        assert!(ReduceOnPlateau::new(0.5, 1).is_reduced(&history));
        history.epochs.push(epoch(2, None));
        assert!(!ReduceOnPlateau::new(0.5, 1).is_reduced(&history));
    }

    #[test]
    fn settings_that_reduce_nothing_are_refused() {
        let new = ReduceOnPlateau::new;
        for (callback, has_validation, text) in [
            (new(0.5, 1), false, "Datasets::validation"),
            (new(1., 1), true, "factor"),
            (new(f64::NAN, 1), true, "factor"),
            (new(0.5, 0), true, "patience"),
            (new(0.5, 1).min_delta(-1.), true, "minimum difference"),
            (new(0.5, 1).min_learning_rate(f64::INFINITY), true, "learning rate"),
        ] {
            let error = callback.check(has_validation).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
