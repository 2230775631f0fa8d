//! Checks of a [`Trainer`]'s settings.

use super::Trainer;
use distribute_base::{Error, Result};
use distribute_core::Strategy;
use distribute_data::InputContext;

impl Trainer<'_> {
    // GNN-4, GNN-7
    /// Checks that the settings are valid and do not contradict each other.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a setting is out of range, settings contradict each other, or the strategy does
    ///   not support one.
    /// - [`Error::NotSupported`]: there are several workers, which only run functions that a coordinator schedules.
    /// - [`Error::Data`]: the global batch cannot be divided equally over the replicas.
    /// - The errors of the strategy's cluster resolver.
    pub(super) fn check(&self, strategy: &Strategy, validates: bool, has_ema: bool) -> Result<()> {
        self.counts()?;
        self.fit(validates, has_ema)?;
        self.workers(strategy)?;
        let num_replicas_in_sync = strategy.num_replicas_in_sync();
        InputContext { num_replicas_in_sync, ..Default::default() }
            .get_per_replica_batch_size(self.global_batch)?;
        Ok(())
    }

    // PSV1-1
    /// Returns an error if the workers of the strategy do not support the settings.
    ///
    /// - Independent workers are at different steps, so backups are rejected: the backup of one worker lacks the state
    ///   of the others, and restoring it would overwrite their updates.
    /// - Independent workers share their variables, so `validate_ema` is rejected: the others would train with the
    ///   averages.
    /// - Workers that wait for a coordinator would not take part, so this process would train alone.
    fn workers(&self, strategy: &Strategy) -> Result<()> {
        let Some(of) = strategy.extended().independent() else {
            return match strategy.scheduled_workers()? {
                ..=1 => Ok(()),
                _ => Err(Error::NotSupported {
                    operation: "runner::run",
                    strategy: "ParameterServerStrategy",
                    what: "training on several workers, which only run functions that a ClusterCoordinator schedules: \
                           this process would train alone",
                    advice: "schedule steps with a ClusterCoordinator, run the program on each worker with \
                             between_graph::AsyncWorkerStrategy, or use a cluster with one worker",
                }),
            };
        };
        let asked = [
            (self.backup.is_some(), "backup"),
            (self.best.is_some(), "save_best"),
            (self.recovers.is_some(), "recover"),
            (self.validates_ema, "validate_ema"),
        ];
        match asked.into_iter().find(|(asked, _)| of.workers > 1 && *asked) {
            Some((_, "validate_ema")) => refused(
                "Trainer::validate_ema with workers that train independently: the other workers would train with the \
                 averages while this one validates; validate in Trainer::on_epoch, with a separate model that has the \
                 values of Optimizer::ema"
                    .into(),
            ),
            Some((_, what)) => refused(format!(
                "Trainer::{what} with workers that train independently, which have no common step to resume from; \
                 save a Checkpoint on the chief in Trainer::on_epoch, and restore it there before \
                 AsyncWorkerStrategy::ready"
            )),
            None => Ok(()),
        }
    }

    /// Returns an error if a count is 0, or if the minimum difference is negative, infinite or NaN.
    fn counts(&self) -> Result<()> {
        let counts = [
            (Some(self.global_batch), "Trainer::new: a global batch"),
            (self.steps_per_epoch, "Trainer::steps_per_epoch: an epoch"),
            (self.validation_steps, "Trainer::validation_steps: a validation"),
            (self.validate_every, "Trainer::validate_every: the time between validations"),
            (self.validate_per_epoch, "Trainer::validate_per_epoch: a number of validations"),
            (self.patience, "Trainer::patience: a number of validations"),
            (self.backup_every, "Trainer::backup_every: a number of steps"),
            (Some(self.keep), "Trainer::keep_backups: a number of backups"),
        ];
        match counts.into_iter().find(|(count, _)| *count == Some(0)) {
            Some((_, what)) => refused(format!("{what} of 0; use at least 1")),
            None if self.min_delta >= 0. && self.min_delta.is_finite() => Ok(()),
            None => refused(format!("Trainer::min_delta: {} is not a minimum difference", self.min_delta)),
        }
    }

    /// Returns an error if a setting requires another one that is missing, or contradicts another one.
    fn fit(&self, validates: bool, has_ema: bool) -> Result<()> {
        let examples = "there are no examples to validate with; set them with Datasets::validation";
        let (steps, backup) =
            ("set Trainer::steps_per_epoch", "there is no folder for backups; set one with Trainer::backup");
        for (asked, given, what, advice) in [
            (self.validation_steps.is_some(), validates, "validation_steps", examples),
            (self.patience.is_some(), validates, "patience", examples),
            (self.best.is_some(), validates, "save_best", examples),
            (self.validates_ema, validates, "validate_ema", examples),
            (
                self.validates_ema,
                has_ema,
                "validate_ema",
                "the optimizer keeps no averages of the weights; create it with Optimizer::with_ema",
            ),
            (
                self.restores_best,
                self.best.is_some(),
                "restore_best",
                "there is no folder with the best weights; set one with Trainer::save_best",
            ),
            (self.validate_per_epoch.is_some(), self.steps_per_epoch.is_some(), "validate_per_epoch", steps),
            (
                self.validate_per_epoch.is_some(),
                self.validate_every.is_none(),
                "validate_per_epoch",
                "it conflicts with Trainer::validate_every; set one of the two",
            ),
            (self.backup_every.is_some(), self.backup.is_some(), "backup_every", backup),
            (self.grace.is_some(), self.backup.is_some(), "save_on_notice", backup),
        ] {
            if asked && !given {
                return refused(format!("Trainer::{what}, but {advice}"));
            }
        }
        match (self.steps_per_epoch, self.validate_per_epoch) {
            (Some(steps), Some(times)) if !steps.is_multiple_of(times) => refused(format!(
                "Trainer::validate_per_epoch: {times} parts of an epoch of {steps} steps are not equal; use a number \
                 that divides it"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the number of epochs, and the number of steps in each; the latter is `None` if it is not set. If an
    /// epoch contains several validations, each part that ends with one counts as an epoch.
    pub(super) fn parts(&self) -> (usize, Option<usize>) {
        let parts = self.validate_per_epoch.unwrap_or(1);
        (self.epochs.saturating_mul(parts), self.steps_per_epoch.map(|steps| steps / parts.max(1)))
    }
}

fn refused(reason: String) -> Result<()> {
    Err(Error::invalid("runner::run", reason))
}
