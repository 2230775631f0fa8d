//! Workers that meet again after one was lost, and processes that take the places of others in a training that goes on.

use super::Strategy;
use crate::lock::lock;
use crate::{Error, Result};
use distribute_collective::group::{Group, Session};
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How far the weights are, and how far the steps were with them.
#[derive(Debug, Default)]
pub(super) struct Updates(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// How many updates all optimizers have made.
    made: u64,
    /// When the first step since the last update began: how many updates and steps there were.
    anchor: Option<(u64, u64)>,
    /// In a step that has not ended well: how many updates there were before it.
    open: Option<u64>,
    /// How many updates one step has made at most.
    most: u64,
}

/// What is counted alike on all workers of a strategy, and handed over with a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    /// How many updates all optimizers have made.
    pub updates: u64,
    /// How many one step makes at most.
    pub most: u64,
    /// How many steps were made.
    pub steps: u64,
    /// How many variables and optimizers have been made.
    pub variables: u64,
    pub optimizers: u64,
}

impl Strategy {
    /// How often the workers of this strategy have met: 1 at first, and one more each time they have met again after one was
    /// lost; 1 for strategies of one process.
    pub(crate) fn generation(&self) -> u64 {
        self.extended().group().map_or(1, Group::generation)
    }

    /// How many updates all optimizers of this strategy have made. It is the same on all workers between steps.
    pub(crate) fn updates(&self) -> u64 {
        lock(&self.0.updates.0).made
    }

    /// An optimizer has made an update, on all replicas of this process.
    pub(crate) fn count_update(&self) {
        lock(&self.0.updates.0).made += 1;
    }

    /// A step begins.
    pub(super) fn begin_updates(&self) {
        let mut counts = lock(&self.0.updates.0);
        let made = counts.made;
        if counts.anchor.is_none_or(|(before, _)| before != made) {
            counts.anchor = Some((made, self.steps()));
        }
        counts.open = Some(made);
    }

    /// The step has ended well.
    pub(super) fn end_updates(&self) {
        let mut counts = lock(&self.0.updates.0);
        if let Some(before) = counts.open.take() {
            counts.most = counts.most.max(counts.made - before);
        }
    }

    /// To the number of steps that there were when the last update was made: those after it are made again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the step that was interrupted has made some of its updates.
    pub(crate) fn rewind_steps(&self) -> Result<()> {
        let mut counts = lock(&self.0.updates.0);
        let in_step = counts.open.map_or(0, |before| counts.made - before);
        // How many the first one makes is not known before it has ended.
        if in_step > 0 && (in_step < counts.most || counts.most == 0) {
            let of = if counts.most == 0 { String::new() } else { format!(" of the {}", counts.most) };
            let reason = format!("{in_step}{of} updates of a step had been made when it was interrupted");
            return Err(Error::invalid("Training::recover", reason));
        }
        // Half a step stays one, however often the workers meet until they go on.
        counts.open = None;
        let (made, anchor) = (counts.made, counts.anchor.take());
        if let Some((_, steps)) = anchor.filter(|(before, _)| *before == made) {
            self.0.steps.store(steps, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What is counted alike on all workers.
    pub(crate) fn numbers(&self) -> Numbers {
        let Counts { made: updates, most, .. } = *lock(&self.0.updates.0);
        let (variables, optimizers) =
            (self.0.created.load(Ordering::Relaxed), self.0.optimizers.load(Ordering::Relaxed));
        Numbers { updates, most, steps: self.steps(), variables, optimizers }
    }

    /// Other numbers, on which all workers have agreed.
    pub(crate) fn set_numbers(&self, numbers: Numbers) {
        let Numbers { updates, most, steps, variables, optimizers } = numbers;
        *lock(&self.0.updates.0) = Counts { made: updates, most, ..Counts::default() };
        self.0.steps.store(steps, Ordering::Relaxed);
        self.0.created.store(variables, Ordering::Relaxed);
        self.0.optimizers.store(optimizers, Ordering::Relaxed);
        // Of some only those who were there know that they are gone.
        self.0.workers.mirrored.renew();
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

    /// Whether this process builds alone what the others have built already.
    pub(crate) fn is_settling(&self) -> bool {
        self.0.workers.is_settling()
    }

    /// Refuses what needs the others while this process has not taken over their state.
    pub(crate) fn require_settled(&self, operation: &'static str) -> Result<()> {
        if !self.is_settling() {
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
        if met.is_ok() {
            self.unsettle();
        }
        // What one of the others has heard, and those that have come have not, is said again.
        self.notice().forget();
        Some(met)
    }

    /// The traffic in which the workers agree on where the training stands; `None` if there is only one.
    pub(crate) fn recovery(&self) -> Option<Session> {
        Some(self.all_workers()?.open("recovery", self.steps()))
    }
}

#[cfg(test)]
mod tests {
    use crate::MirroredStrategy;

    // INV-42
    #[test]
    fn half_a_step_stays_one_until_all_go_on() {
        let strategy = MirroredStrategy::cpus(1).unwrap();
        strategy.begin_updates();
        strategy.count_update();
        assert!(strategy.rewind_steps().is_err(), "how many the first step makes is not known");
        strategy.count_update();
        strategy.end_updates();
        strategy.begin_updates();
        strategy.count_update();
        for _ in 0..2 {
            let error = strategy.rewind_steps().unwrap_err().to_string();
            assert!(error.contains("1 of the 2 updates of a step"), "{error}");
        }
        strategy.set_numbers(strategy.numbers());
        strategy.rewind_steps().unwrap();
    }
}
