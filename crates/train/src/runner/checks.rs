//! Checks for contradictory settings of a [`Trainer`].

use super::Trainer;
use distribute_base::{Error, Result};
use distribute_cluster::Job;
use distribute_core::Strategy;
use distribute_data::InputContext;

impl Trainer<'_> {
    // GNN-4, GNN-7
    /// Checks the settings.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: settings contradict each other.
    /// - [`Error::Data`]: the global batch cannot be divided equally over the replicas.
    pub(super) fn check(&self, strategy: &Strategy, validates: bool) -> Result<()> {
        self.counts()?;
        self.fit(validates)?;
        self.workers(strategy)?;
        let num_replicas_in_sync = strategy.num_replicas_in_sync();
        InputContext { num_replicas_in_sync, ..Default::default() }
            .get_per_replica_batch_size(self.global_batch)?;
        Ok(())
    }

    // PSV1-1
    /// Refuses settings that do not fit independent or scheduled workers.
    ///
    /// Independent workers are at different steps. A backup of one worker is not the state of the others, and
    /// restoring it would overwrite their updates. Workers that wait for a coordinator would wait forever.
    fn workers(&self, strategy: &Strategy) -> Result<()> {
        let Some(of) = strategy.extended().independent() else {
            return match scheduled_workers(strategy)? {
                ..=1 => Ok(()),
                _ => Err(Error::NotSupported {
                    operation: "runner::run",
                    strategy: "ParameterServerStrategy",
                    what: "training on several workers, which only do what a ClusterCoordinator schedules: this process would train alone",
                    advice: "schedule steps by a ClusterCoordinator, run the program on each worker with \
                             between_graph::ParameterServerStrategy, or make the cluster with one worker",
                }),
            };
        };
        let asked = [
            (self.backup.is_some(), "backup"),
            (self.best.is_some(), "save_best"),
            (self.recovers.is_some(), "recover"),
        ];
        match asked.into_iter().find(|(asked, _)| of.workers > 1 && *asked) {
            Some((_, what)) => refused(format!(
                "Trainer::{what} under workers that train by themselves, which have no step in common to go back to; save a Checkpoint on \
                 the chief in Trainer::on_epoch, and restore it there before ParameterServerStrategy::ready"
            )),
            None => Ok(()),
        }
    }

    /// Checks that no count is 0.
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
            Some((_, what)) => refused(format!("{what} of 0; it is 1 at least")),
            None if self.min_delta >= 0. && self.min_delta.is_finite() => Ok(()),
            None => refused(format!("Trainer::min_delta: {} is no least difference", self.min_delta)),
        }
    }

    /// Checks that each setting has the other settings that it needs.
    fn fit(&self, validates: bool) -> Result<()> {
        let examples = "no examples to validate with; give them by Datasets::validation";
        let (steps, backup) =
            ("give Trainer::steps_per_epoch", "no folder for backups; give one by Trainer::backup");
        for (asked, given, what, advice) in [
            (self.validation_steps.is_some(), validates, "validation_steps", examples),
            (self.patience.is_some(), validates, "patience", examples),
            (self.best.is_some(), validates, "save_best", examples),
            (
                self.restores_best,
                self.best.is_some(),
                "restore_best",
                "no folder with the best weights; give one by Trainer::save_best",
            ),
            (self.validate_per_epoch.is_some(), self.steps_per_epoch.is_some(), "validate_per_epoch", steps),
            (
                self.validate_per_epoch.is_some(),
                self.validate_every.is_none(),
                "validate_per_epoch",
                "not with Trainer::validate_every; give one of the two",
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
                "Trainer::validate_per_epoch: {times} parts of an epoch of {steps} steps are not equal; give a number that divides it"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the number of epochs, counting each of their parts as one, and the number of steps of each.
    pub(super) fn parts(&self) -> (usize, Option<usize>) {
        let parts = self.validate_per_epoch.unwrap_or(1);
        (self.epochs.saturating_mul(parts), self.steps_per_epoch.map(|steps| steps / parts.max(1)))
    }
}

/// Returns the number of workers that wait for calls from a coordinator.
fn scheduled_workers(strategy: &Strategy) -> Result<usize> {
    let extended = strategy.extended();
    let (Some(_), Some(resolver)) = (extended.parameter_servers(), extended.cluster_resolver()) else {
        return Ok(0);
    };
    Ok(resolver.cluster_spec()?.num_tasks(&Job::Worker).unwrap_or(0))
}

fn refused(reason: String) -> Result<()> {
    Err(Error::invalid("runner::run", reason))
}
