//! The times of this worker's steps, which workers send to each other when they begin the next step together.

use super::Strategy;
use distribute_collective::group::Group;
use distribute_decisions::internal::StepTimes;
use distribute_decisions::{Straggler, WorkerTimes};
use distribute_log::warn_or_stderr;
use std::time::Duration;

impl Strategy {
    /// Returns the worker that makes the others wait, and why, if there is one. The decision is based on the times of
    /// all workers over about the last minute, and is the same on all workers. It needs at least 10 s and 20 steps;
    /// with a single worker, the result is always `None`. The chief also logs a warning, once for each worker and
    /// cause.
    ///
    /// A worker is slow if it takes at least 1.25 times as long as the median of the others, and the others wait at
    /// least a tenth of each step for it. From three workers on, a worker whose messages arrive late is found as well.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// assert!(strategy.straggler().is_none() && strategy.worker_times().is_empty());
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn straggler(&self) -> Option<Straggler> {
        self.step_meter().straggler()
    }

    /// Returns the mean times of each worker in a step, over about the last minute, in the order of ranks. The list is
    /// empty if there is only one worker, and before the first step. Before the second step, all times are zero.
    pub fn worker_times(&self) -> Vec<WorkerTimes> {
        self.step_meter().means()
    }

    /// Adds `time` to the time in which the program waited for the input of this worker.
    pub(crate) fn record_input_time(&self, time: Duration) {
        self.step_meter().record_input(time);
    }

    /// Returns the mean times of this worker's steps since they were last taken.
    pub(crate) fn take_step_times(&self, group: &Group) -> StepTimes {
        group.take_waits(|waits| self.step_meter().take(waits))
    }

    /// Records that a step has begun on all workers. `all` contains the times of each worker since its previous step,
    /// in the order of ranks. The chief logs a warning if these reveal a new straggler.
    pub(crate) fn record_step_begin(&self, group: &Group, all: &[StepTimes]) {
        let new = self.step_meter().add(all);
        if let Some(straggler) = new.filter(|_| self.world().is_chief()) {
            let worker = self.describe_worker(straggler.worker);
            let Straggler { cause, seconds_per_step, share, .. } = straggler;
            warn_or_stderr(|| {
                tracing::warn!(
                    "all workers wait for {worker}, {:.1} ms and {:.0} % of each step: {cause}",
                    seconds_per_step * 1e3,
                    share * 100.
                );
            });
        }
        group.take_waits(|waits| self.step_meter().begin(waits));
    }

    /// Records that this worker begins a step alone.
    pub(crate) fn record_step_begin_alone(&self, group: &Group) {
        group.take_waits(|waits| self.step_meter().begin_alone(waits));
    }

    /// Records that the step has ended on this worker.
    pub(crate) fn record_step_end(&self, group: &Group) {
        group.take_waits(|waits| self.step_meter().end(waits));
    }

    /// Discards the times of all workers, because the workers have changed.
    pub(super) fn forget_times(&self) {
        self.step_meter().forget();
    }
}
