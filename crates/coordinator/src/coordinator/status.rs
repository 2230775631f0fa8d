//! What a coordinator says of itself and of its workers.

use crate::call::{FunctionId, ResourceId};
use crate::dispatch::Task;
use std::fmt;
use std::time::Duration;

/// What a coordinator and its workers do just now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// How many closures wait for a worker.
    pub queued: usize,
    /// How many closures have ended.
    pub ended: u64,
    /// How many closures workers have run to their end; one may be run more than once.
    pub run: u64,
    /// How many others ended while one of these ran, of all of them together.
    pub overlaps: u64,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
}

/// What a worker does just now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// Its name.
    pub name: String,
    /// Why it is not there, if it is not.
    pub away: Option<String>,
    /// How often it was lost.
    pub losses: u64,
    /// The function that it runs, for what, and for how long.
    pub running: Option<(FunctionId, Task, Duration)>,
    /// How many closures it has.
    pub closures: usize,
    /// The resources that it has yet to make.
    pub missing: Vec<ResourceId>,
}

impl Status {
    /// How stale values were: how many other closures ended, on the average, while one ran, of those that have ended since `earlier`. `None`
    /// where none has. With n workers whose closures take equally long it is n - 1.
    pub fn staleness_since(&self, earlier: &Self) -> Option<f64> {
        let run = self.run.saturating_sub(earlier.run);
        (run > 0).then(|| self.overlaps.saturating_sub(earlier.overlaps) as f64 / run as f64)
    }
}

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (&self.away, &self.running, &self.missing[..]) {
            (Some(why), ..) => write!(f, "{name} is not there ({why})"),
            (None, Some((function, task, since)), _) => {
                write!(f, "{name} has run {function} ({task}) for {:.1} s", since.as_secs_f64())
            }
            (None, None, [first, ..]) => write!(f, "{name} waits to make {first}"),
            (None, None, []) => write!(f, "{name} has nothing to do"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_is_of_the_closures_that_have_ended_since_the_last_look() {
        let status = |run, overlaps| Status { queued: 0, ended: run, run, overlaps, workers: Vec::new() };
        assert_eq!(status(4, 6).staleness_since(&status(0, 0)), Some(1.5));
        assert_eq!(status(14, 36).staleness_since(&status(4, 6)), Some(3.));
        assert_eq!(status(4, 6).staleness_since(&status(4, 6)), None);
    }
}
