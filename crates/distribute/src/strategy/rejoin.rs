//! Workers that meet again after one was lost, and processes that take the places of others in a training that goes on.

use super::Strategy;
use crate::{Error, Result};
use distribute_collective::group::{Group, Session};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How far the weights are, and how far the steps were with them.
#[derive(Debug, Default)]
pub(super) struct Updates {
    /// How many updates all optimizers have made.
    made: AtomicU64,
    /// How many there were when a step began last that had others before it than the step before.
    seen: AtomicU64,
    /// The number of steps before that one.
    steps: AtomicU64,
}

impl Strategy {
    /// How often the workers of this strategy have met: 1 at first, and one more each time they have met again after one was
    /// lost; 1 for strategies of one process.
    pub(crate) fn generation(&self) -> u64 {
        self.extended().group().map_or(1, Group::generation)
    }

    /// How many updates all optimizers of this strategy have made. It is the same on all workers between steps.
    pub(crate) fn updates(&self) -> u64 {
        self.0.updates.made.load(Ordering::Relaxed)
    }

    /// Another number of updates, of the state that was taken over.
    pub(crate) fn set_updates(&self, updates: u64) {
        self.0.updates.made.store(updates, Ordering::Relaxed);
    }

    /// An optimizer has made an update, on all replicas of this process.
    pub(crate) fn count_update(&self) {
        self.0.updates.made.fetch_add(1, Ordering::Relaxed);
    }

    /// A step begins.
    pub(super) fn begins_after_updates(&self) {
        let Updates { made, seen, steps } = &self.0.updates;
        let now = made.load(Ordering::Relaxed);
        // What was seen is kept as one more, so that 0 is nothing.
        if seen.swap(now.saturating_add(1), Ordering::Relaxed) != now.saturating_add(1) {
            steps.store(self.steps(), Ordering::Relaxed);
        }
    }

    /// To the number of steps that there were when the last update was made: those after it are made again.
    pub(super) fn rewind_steps(&self) {
        let Updates { made, seen, steps } = &self.0.updates;
        if seen.swap(0, Ordering::Relaxed) == made.load(Ordering::Relaxed).saturating_add(1) {
            self.0.steps.store(steps.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// This process has taken a place in a training that goes on: from here until it is [settled](Self::settle), it builds what
    /// the others have built already, and makes no calls with them.
    pub(super) fn unsettle(&self) {
        self.0.workers.unsettle();
    }

    /// From here on calls are made with the others.
    pub(crate) fn settle(&self) {
        self.0.workers.settle();
    }

    /// Refuses what needs the others while this process has not taken over their state.
    pub(crate) fn require_settled(&self, operation: &'static str) -> Result<()> {
        if !self.0.workers.is_settling() {
            return Ok(());
        }
        let reason = "this process takes the place of a worker in a training that goes on: make a Training of it, which takes \
                      over the state of the others, before the first step";
        Err(Error::invalid(operation, reason))
    }

    /// Leaves the world in which a worker was lost, and meets those of the next one; calls are made with them once this is
    /// [settled](Self::settle). `None` if workers can't meet again.
    ///
    /// # Errors
    /// [`Error::Join`] of workers that have not come after `patience`.
    pub(crate) fn rejoin(&self, patience: Duration) -> Option<Result<()>> {
        let met = self.extended().rejoin(patience)?;
        self.unsettle();
        Some(met)
    }

    /// The traffic in which the workers agree on where the training stands; `None` if there is only one.
    pub(crate) fn recovery(&self) -> Option<Session> {
        Some(self.all_workers()?.open("recovery", self.steps()))
    }
}
