//! [`Callback`]: code that observes a training run, and the callbacks of this crate.
//!
//! | file | contents |
//! |---|---|
//! | `csv_log` | [`CsvLog`]: a file with a line for each epoch |
//! | `plateau` | [`ReduceOnPlateau`]: a lower learning rate if the validation loss no longer improves |
//! | `progress_bar` | the display on a terminal, and the lines elsewhere |
//! | `closures` | closures as callbacks |

mod closures;
mod csv_log;
mod plateau;
mod progress_bar;

pub(super) use closures::{OnEpoch, OnStep};
#[doc(alias = "tf.keras.callbacks.CSVLogger")]
#[doc(alias = "CSVLogger")]
pub use csv_log::CsvLog;
#[doc(alias = "tf.keras.callbacks.ReduceLROnPlateau")]
#[doc(alias = "ReduceLROnPlateau")]
pub use plateau::ReduceOnPlateau;
pub(super) use progress_bar::ProgressBar;

use super::{Epoch, History, Step};
use distribute_base::Result;
use distribute_core::{Strategy, Variables};
use distribute_optim::Rule;
use distribute_optimizer::Optimizer;
use std::ops::ControlFlow;

/// Code that [`run`](super::run) calls at certain times. [`Trainer::callback`](super::Trainer::callback) adds it to a
/// training run.
///
/// All methods are called between steps, on all workers, with the same arguments. An exception is
/// [`on_begin`](Self::on_begin) on a worker that joins later. They must have the same effects on the weights and the
/// learning rate of all workers. A callback that writes a file must do so only if
/// [`is_chief`](CallbackContext::is_chief) returns `true`.
///
/// If training resumes from a backup, or after the loss of a worker, the work after the restored position is repeated,
/// including callbacks. A callback should therefore have no state of its own and decide from the
/// [`history`](CallbackContext::history), which is part of backups, as [`ReduceOnPlateau`] does.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::runner::{Callback, CallbackContext, Epoch, Trainer};
/// use std::ops::ControlFlow;
///
/// /// Ends training if an epoch is worse than the first one.
/// struct Diverged;
/// impl Callback for Diverged {
///     fn on_epoch(&self, context: &CallbackContext<'_>, epoch: &Epoch) -> distribute::Result<ControlFlow<()>> {
///         let first = &context.history().epochs[0];
///         Ok(if epoch.loss > first.loss { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
///     }
/// }
/// let trainer = Trainer::new(8).epochs(3).callback(Diverged);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.callbacks.Callback")]
pub trait Callback {
    /// Called before the first step of this process, after its backup has been restored. A worker that joins a run in
    /// progress has not received the state yet, so its history is empty.
    ///
    /// # Errors
    /// An error ends the training run.
    #[doc(alias = "on_train_begin")]
    fn on_begin(&self, _context: &CallbackContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Called after each training step.
    ///
    /// # Errors
    /// An error ends the training run.
    #[doc(alias = "on_train_batch_end")]
    fn on_step(&self, _context: &CallbackContext<'_>, _step: &Step) -> Result<()> {
        Ok(())
    }

    /// Called after each epoch and its validation, before its backup is saved. The epoch is the last one of the
    /// [`history`](CallbackContext::history). If the result is [`ControlFlow::Break`], training ends.
    ///
    /// # Errors
    /// An error ends the training run.
    #[doc(alias = "on_epoch_end")]
    fn on_epoch(&self, _context: &CallbackContext<'_>, _epoch: &Epoch) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }

    /// Called after the last epoch, or when the training run ends for another [reason](super::End), but not after an
    /// error. The [best weights](super::Trainer::restore_best) have been restored if this is enabled, unless the reason
    /// is [`End::Notice`](super::End::Notice).
    ///
    /// # Errors
    /// The result of the training run is this error.
    #[doc(alias = "on_train_end")]
    fn on_end(&self, _context: &CallbackContext<'_>) -> Result<()> {
        Ok(())
    }
}

/// The state of a training run, for a [`Callback`].
pub struct CallbackContext<'a> {
    pub(super) history: &'a History,
    pub(super) variables: &'a Variables,
    pub(super) rate: &'a dyn LearningRate,
    pub(super) epochs: usize,
    pub(super) steps_per_epoch: Option<usize>,
    pub(super) has_validation: bool,
}

impl CallbackContext<'_> {
    /// Returns the history: the complete epochs and, in [`on_end`](Callback::on_end), the reason why training ended.
    pub fn history(&self) -> &History {
        self.history
    }

    /// Returns the variables of the model, for example to read or save them.
    pub fn variables(&self) -> &Variables {
        self.variables
    }

    /// Returns the strategy of the model.
    pub fn strategy(&self) -> &Strategy {
        self.variables.strategy()
    }

    /// Returns whether this process is the one that writes files and shows the progress.
    pub fn is_chief(&self) -> bool {
        self.strategy().is_chief()
    }

    /// Returns the number of epochs after which training ends.
    pub fn epochs(&self) -> usize {
        self.epochs
    }

    /// Returns the number of steps in an epoch; `None` before the end of the first epoch if the trainer does not set it
    /// and the dataset does not determine it.
    pub fn steps_per_epoch(&self) -> Option<usize> {
        self.steps_per_epoch
    }

    /// Returns whether there are validation examples.
    pub fn has_validation(&self) -> bool {
        self.has_validation
    }

    /// Returns the learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.rate.learning_rate()
    }

    /// Sets the learning rate of the next steps.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the rate is negative, infinite or NaN,
    ///   or the optimizer has a schedule.
    #[doc(alias = "tf.keras.callbacks.LearningRateScheduler")]
    #[doc(alias = "LearningRateScheduler")]
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        self.rate.set_learning_rate(learning_rate)
    }
}

impl std::fmt::Debug for CallbackContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallbackContext").field("history", self.history).finish_non_exhaustive()
    }
}

/// The learning rate of an optimizer with any rule.
pub(super) trait LearningRate {
    fn learning_rate(&self) -> f64;
    fn set_learning_rate(&self, learning_rate: f64) -> Result<()>;
}

impl<R: Rule> LearningRate for Optimizer<R> {
    fn learning_rate(&self) -> f64 {
        self.learning_rate()
    }

    fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        self.set_learning_rate(learning_rate)
    }
}
