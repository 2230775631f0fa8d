//! Decides which worker makes the others wait, and why, from the times that all workers measured.

use crate::step_times::StepTimes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The time in seconds after which the weight of a measurement has fallen to about a third (1/e).
const MEMORY: f64 = 60.;

/// The minimum time in seconds that must be observed before a worker is considered slow. The first steps are often
/// slow, because the page cache is cold.
const MIN_SECONDS: f64 = 10.;
/// The minimum number of steps that must be observed before a worker is considered slow.
const MIN_STEPS: u64 = 20;

/// The minimum ratio of a slow worker's time to the median of the others.
const MIN_RATIO: f64 = 1.25;
/// The minimum share of a step for which the others must wait before a worker is considered slow.
const MIN_SHARE: f64 = 0.1;

/// A slow worker lacks processor time if it gets less than this fraction of the others' processor time per second of
/// computing.
const MIN_PROCESSOR: f64 = 0.8;

/// The share of a worker's waits that must be for one other worker before the link of that other worker is suspected.
const MIN_BLAMED: f64 = 0.6;

/// A worker that makes all others wait.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Straggler {
    /// The rank of the worker that makes the others wait.
    pub worker: usize,
    /// The reason why the worker is slow.
    pub cause: StragglerCause,
    /// The time per step for which the others wait for this worker, in seconds, averaged over about the last minute.
    pub seconds_per_step: f64,
    /// The share of the step's duration for which the others wait, between 0 and 1.
    pub share: f64,
}

/// The reason why a worker is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StragglerCause {
    /// The worker's input takes longer than that of the others.
    Input,
    /// The worker gets less processor time than the others: another program uses its cores, or a limit holds it back.
    Processor,
    /// The program takes longer between the steps than on the other workers, for example because it reads input itself,
    /// evaluates or saves.
    Outside,
    /// The worker computes longer although it gets as much processor time: its processor is slower, or has more to do.
    Computing,
    /// The worker is as fast as the others, but its messages arrive late: its link is slow.
    Link,
}

impl fmt::Display for StragglerCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "its input is slow",
            Self::Outside => "its program takes longer between the steps",
            Self::Processor => "it gets less processor time than the others",
            Self::Computing => "it computes longer than the others",
            Self::Link => "its link is slow",
        })
    }
}

/// The mean times of a worker in a step, in seconds, over about the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkerTimes {
    /// The time inside `run`, without waits for other workers.
    pub computing: f64,
    /// The processor time of all threads inside `run`, including threads that wait.
    pub processor: f64,
    /// The time in which the program waited for input.
    pub input: f64,
    /// The rest of the time between two steps.
    pub outside: f64,
    /// The time in which the worker waited for others.
    pub waiting: f64,
}

impl WorkerTimes {
    fn own(&self) -> f64 {
        self.computing + self.input + self.outside
    }
}

/// The sums of the times of each worker, in which older steps count less. The sums are the same on all workers, so all
/// find the same straggler.
#[derive(Debug, Default)]
pub struct Stragglers {
    workers: Vec<Sums>,
    /// The sum of the weights of all steps. A step has weight 1 when it is added.
    weight: f64,
    /// The total time of all steps, in seconds.
    seconds: f64,
    steps: u64,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    times: WorkerTimes,
    /// The sum of this worker's waits for each worker, in seconds, by rank. Only the longest wait of each step is
    /// added, and older steps count less.
    awaited: Vec<f64>,
}

impl Stragglers {
    /// Adds the times of all workers in a step, in the order of ranks. Returns the time that the step took. Discards
    /// the earlier times if the number of workers has changed. If a worker has no times for the step, ignores it and
    /// returns 0.
    pub fn add(&mut self, all: &[StepTimes]) -> Duration {
        if self.workers.len() != all.len() {
            let sums = Sums { awaited: vec![0.; all.len()], ..Sums::default() };
            *self = Self { workers: vec![sums; all.len()], ..Self::default() };
        }
        // A worker's previous step has failed, or there was none.
        if all.contains(&StepTimes::default()) {
            return Duration::ZERO;
        }
        let whole = |times: &StepTimes| times.own().saturating_add(times.waiting);
        let longest = all.iter().map(whole).max().unwrap_or_default();
        let step = longest.as_secs_f64();
        let keep = (-step / MEMORY).exp();
        self.weight = self.weight * keep + 1.;
        self.seconds += step;
        self.steps += 1;
        let seconds = Duration::as_secs_f64;
        for (sums, step) in self.workers.iter_mut().zip(all) {
            let WorkerTimes { computing, processor, input, outside, waiting } = &mut sums.times;
            let added = [step.computing, step.processor, step.input, step.outside, step.waiting];
            for (sum, time) in [computing, processor, input, outside, waiting].into_iter().zip(added) {
                *sum = *sum * keep + seconds(&time);
            }
            sums.awaited.iter_mut().for_each(|time| *time *= keep);
            // A rank that does not exist is ignored.
            if let Some((worker, time)) = step.awaited
                && let Some(sum) = sums.awaited.get_mut(worker)
            {
                *sum += seconds(&time);
            }
        }
        longest
    }

    /// Returns the mean times of all workers, in the order of ranks. The list is empty before the first step.
    pub fn means(&self) -> Vec<WorkerTimes> {
        let mean = |sum: f64| sum / self.weight.max(1.);
        let of = |sums: &Sums| {
            let WorkerTimes { computing, processor, input, outside, waiting } = sums.times;
            let [computing, processor, input, outside, waiting] =
                [computing, processor, input, outside, waiting].map(mean);
            WorkerTimes { computing, processor, input, outside, waiting }
        };
        self.workers.iter().map(of).collect()
    }

    /// Returns the worker that makes the others wait; `None` if there is none, or if the steps that were added are too
    /// few or took too little time.
    pub fn straggler(&self) -> Option<Straggler> {
        if self.steps < MIN_STEPS || self.seconds < MIN_SECONDS || self.workers.len() < 2 {
            return None;
        }
        let means = self.means();
        let step = means.iter().map(|times| times.own() + times.waiting).fold(0., f64::max);
        let (worker, slowest) =
            means.iter().enumerate().max_by(|(_, one), (_, other)| one.own().total_cmp(&other.own()))?;
        let others = |value: fn(&WorkerTimes) -> f64| {
            let others = means.iter().enumerate().filter(|(other, _)| *other != worker);
            median(others.map(|(_, times)| value(times)).collect())
        };
        let usual = others(WorkerTimes::own);
        let excess = slowest.own() - usual;
        if slowest.own() < MIN_RATIO * usual || excess <= MIN_SHARE * step {
            return self.slow_link(&means, step);
        }
        let rate = |times: &WorkerTimes| times.processor / times.computing.max(f64::MIN_POSITIVE);
        let cause = if slowest.input - others(|times| times.input) >= excess / 2. {
            StragglerCause::Input
        } else if slowest.outside - others(|times| times.outside) >= excess / 2. {
            StragglerCause::Outside
        } else if rate(slowest) < MIN_PROCESSOR * others(rate) {
            StragglerCause::Processor
        } else {
            StragglerCause::Computing
        };
        Some(Straggler { worker, cause, seconds_per_step: excess, share: excess / step })
    }

    /// Returns the worker for which all others wait although it is not slower than they are. With two workers, returns
    /// `None`: each waits for the other, so the slow link may be that of either.
    fn slow_link(&self, means: &[WorkerTimes], step: f64) -> Option<Straggler> {
        if self.workers.len() < 3 {
            return None;
        }
        let mean = |sum: f64| sum / self.weight.max(1.);
        let blames = |from: usize, worker: usize| {
            let awaited = &self.workers[from].awaited;
            let sum: f64 = awaited.iter().sum();
            awaited[worker] >= MIN_BLAMED * sum && mean(sum) > MIN_SHARE * step
        };
        let is_blamed =
            |worker: &usize| (0..means.len()).filter(|from| from != worker).all(|from| blames(from, *worker));
        let worker = (0..means.len()).find(is_blamed)?;
        let waits = (0..means.len()).filter(|from| *from != worker);
        let seconds_per_step = median(waits.map(|from| mean(self.workers[from].awaited[worker])).collect());
        Some(Straggler {
            worker,
            cause: StragglerCause::Link,
            seconds_per_step,
            share: seconds_per_step / step,
        })
    }
}

/// Returns the median. For an even number of values, this is the lower of the two middle ones; for none, it is 0.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of a worker in a step of 100 ms. The worker waits for `awaited` in the time that is left.
    fn times(computing: u64, processor: u64, input: u64, awaited: Option<usize>) -> StepTimes {
        let waiting = Duration::from_millis(100u64.saturating_sub(computing + input));
        StepTimes {
            computing: Duration::from_millis(computing),
            processor: Duration::from_millis(processor),
            input: Duration::from_millis(input),
            outside: Duration::ZERO,
            waiting,
            awaited: awaited.map(|worker| (worker, waiting)),
        }
    }

    fn after(steps: usize, all: &[StepTimes]) -> Stragglers {
        let mut stragglers = Stragglers::default();
        for _ in 0..steps {
            stragglers.add(all);
        }
        stragglers
    }

    fn found(all: &[StepTimes]) -> Option<(usize, StragglerCause)> {
        after(200, all).straggler().map(|it| (it.worker, it.cause))
    }

    #[test]
    fn each_cause_is_found_by_what_the_time_was_spent_on() {
        let normal = times(50, 50, 1, Some(1));
        assert_eq!(found(&[normal, times(100, 50, 0, None), normal]), Some((1, StragglerCause::Processor)));
        assert_eq!(found(&[normal, times(100, 100, 0, None), normal]), Some((1, StragglerCause::Computing)));
        assert_eq!(found(&[normal, times(50, 50, 50, None), normal]), Some((1, StragglerCause::Input)));
        let outside = StepTimes { outside: Duration::from_millis(50), ..times(50, 50, 0, None) };
        assert_eq!(found(&[normal, outside, normal]), Some((1, StragglerCause::Outside)));
        assert_eq!(
            found(&[normal, times(50, 50, 0, Some(2)), normal]),
            Some((1, StragglerCause::Link)),
            "all others wait for worker 1, which is as fast as they are"
        );
        assert_eq!(found(&[normal, times(100, 50, 0, None)]), Some((1, StragglerCause::Processor)));
    }

    #[test]
    fn the_time_that_it_costs_is_told() {
        let all = [times(50, 50, 0, Some(1)), times(100, 100, 0, None), times(50, 50, 0, Some(1))];
        let straggler = after(200, &all).straggler().unwrap();
        assert!((straggler.seconds_per_step - 0.05).abs() < 1e-9 && (straggler.share - 0.5).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_found_without_a_reason_or_too_early() {
        let equal = [times(80, 80, 0, Some(1)), times(85, 85, 0, Some(2)), times(82, 82, 0, Some(0))];
        assert_eq!(found(&equal), None);
        // Both wait: it is unknown whose link is slow.
        assert_eq!(found(&[times(20, 20, 0, Some(1)), times(20, 20, 0, Some(0))]), None);
        assert_eq!(found(&[times(100, 100, 0, None)]), None);
        assert_eq!(found(&[]), None);
        let slow = [times(50, 50, 1, Some(1)), times(100, 50, 0, None)];
        assert_eq!(after(50, &slow).straggler(), None, "5 s are too short");
        // A large share of little: the others are 25 times as fast, but a step has other parts.
        let small = [times(1, 1, 0, Some(1)), times(6, 6, 0, Some(0))];
        assert_eq!(found(&small), None);
    }

    #[test]
    fn a_worker_that_has_become_fast_is_no_straggler_after_some_minutes() {
        let slow = [times(50, 50, 0, Some(1)), times(100, 100, 0, None)];
        let mut stragglers = after(1000, &slow);
        assert!(stragglers.straggler().is_some());
        for _ in 0..2000 {
            stragglers.add(&[times(50, 50, 0, None); 2]);
        }
        assert_eq!(stragglers.straggler(), None);
        stragglers.add(&slow[..1]);
        assert_eq!(stragglers.means().len(), 1, "another world begins anew");
        let before = stragglers.means();
        stragglers.add(&[StepTimes::default()]);
        assert_eq!(stragglers.means(), before, "a worker has no times of a step");
    }

    #[test]
    fn a_rank_of_a_peer_that_does_not_exist_changes_nothing() {
        let stragglers = after(200, &[times(50, 50, 0, Some(7)); 3]);
        assert_eq!(stragglers.straggler(), None);
    }
}
