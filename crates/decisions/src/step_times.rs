//! The time that a worker spends on a step, by activity. Workers exchange these times when the next step begins.

use crate::stragglers::{Straggler, StragglerCause, Stragglers, WorkerTimes};
use distribute_base::internal::lock;
use distribute_cluster::{Stopwatch, processor_time};
use distribute_collective::group::Waits;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::time::Duration;

/// The time that a worker has spent in a step, by activity: since its previous step began or, if it has made steps
/// alone, the mean over these steps. It is only used to find stragglers; the results of training do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The time inside `run`, without waits for other workers.
    pub computing: Duration,
    /// The processor time of the whole process inside `run`; zero if the system does not report it.
    pub processor: Duration,
    /// The time in which the program waited for the input of this worker.
    pub input: Duration,
    /// The rest of the time between two steps, in which the program waited neither for input nor for other workers.
    pub outside: Duration,
    /// The time in which this worker waited for others, inside `run` and between steps.
    pub waiting: Duration,
    /// The worker for which this worker waited longest, and for how long.
    pub awaited: Option<(usize, Duration)>,
    /// The number of steps over which the times are the mean; 0 if there are no times.
    pub steps: u32,
}

impl StepTimes {
    /// Returns the time in which this worker did not wait for others, but others may have waited for it.
    pub fn own(&self) -> Duration {
        self.computing.saturating_add(self.input).saturating_add(self.outside)
    }

    /// Returns the mean times of a step, given the sums over all steps.
    fn mean(self) -> Self {
        let steps = self.steps.max(1);
        Self {
            computing: self.computing / steps,
            processor: self.processor / steps,
            input: self.input / steps,
            outside: self.outside / steps,
            waiting: self.waiting / steps,
            awaited: self.awaited.map(|(worker, time)| (worker, time / steps)),
            steps: self.steps,
        }
    }
}

/// A meter of the times of this worker's steps, which also stores those of all workers.
#[derive(Debug, Default)]
pub struct StepMeter {
    mine: Mutex<Mine>,
    all: Mutex<All>,
}

/// The maximum number of steps as which times are counted that are the mean over more steps.
const MOST_STEPS: u32 = 1000;

/// The times of this worker since they were last taken.
#[derive(Debug, Default)]
struct Mine {
    now: Phase,
    /// The sums over all steps.
    times: StepTimes,
    /// The time in which the program waited for input since the last step ended.
    input: Duration,
    awaited: Vec<Duration>,
}

/// The phase that this worker is in.
#[derive(Debug, Default)]
enum Phase {
    /// No step has ended yet, or the last one has failed.
    #[default]
    Unknown,
    /// A step is running. The stopwatch and the processor time are from its start.
    Running(Stopwatch, Option<Duration>),
    /// No step is running. The stopwatch is from the end of the last one.
    Outside(Stopwatch),
    /// The next step is about to begin.
    Beginning,
}

/// The times of all workers, and the stragglers that have already been returned.
#[derive(Debug, Default)]
struct All {
    stragglers: Stragglers,
    found: Vec<(usize, StragglerCause)>,
}

impl All {
    /// Adds the times of all workers in a step. Returns the straggler, unless it has been returned before.
    fn add(&mut self, times: &[StepTimes]) -> Option<Straggler> {
        let steps = times.iter().map(|times| times.steps).max().unwrap_or_default();
        (0..steps.clamp(1, MOST_STEPS)).for_each(|_| self.stragglers.add(times));
        let straggler = self.stragglers.straggler()?;
        let key = (straggler.worker, straggler.cause);
        if self.found.contains(&key) {
            return None;
        }
        self.found.push(key);
        Some(straggler)
    }
}

impl Mine {
    fn add_waits(&mut self, waits: Waits<'_>) {
        self.times.waiting = self.times.waiting.saturating_add(waits.total);
        if self.awaited.len() < waits.by_worker.len() {
            self.awaited.resize(waits.by_worker.len(), Duration::ZERO);
        }
        for (sum, time) in self.awaited.iter_mut().zip(waits.by_worker) {
            *sum = sum.saturating_add(*time);
        }
    }

    /// Records that the next step is about to begin. `waits` are the waits since the last step ended. If no step has
    /// ended since the previous call, discards all times, so that the creation of a model or a rendezvous does not
    /// count.
    fn leave_outside(&mut self, waits: Waits<'_>) {
        let input = std::mem::take(&mut self.input);
        let Phase::Outside(since) = std::mem::take(&mut self.now) else {
            self.awaited.fill(Duration::ZERO);
            self.times = StepTimes::default();
            return;
        };
        self.now = Phase::Beginning;
        let outside = since.elapsed().saturating_sub(waits.total).saturating_sub(input);
        self.times.outside = self.times.outside.saturating_add(outside);
        self.times.input = self.times.input.saturating_add(input);
        self.times.steps = self.times.steps.saturating_add(1);
        self.add_waits(waits);
    }

    /// Acts like [`leave_outside`](Self::leave_outside). Returns the mean times of the steps since the previous call.
    fn take(&mut self, waits: Waits<'_>) -> StepTimes {
        self.leave_outside(waits);
        let longest = self.awaited.iter().copied().enumerate().max_by_key(|(_, time)| *time);
        self.times.awaited = longest.filter(|(_, time)| !time.is_zero());
        self.awaited.fill(Duration::ZERO);
        std::mem::take(&mut self.times).mean()
    }

    /// Records that a step begins. `waits` are the waits for the others to begin it.
    fn begin(&mut self, waits: Waits<'_>) {
        if matches!(self.now, Phase::Beginning) {
            self.add_waits(waits);
        }
        self.now = Phase::Running(Stopwatch::start(), processor_time());
    }

    /// Records that the step has ended. `waits` are the waits since the step began.
    fn end(&mut self, waits: Waits<'_>) {
        let Phase::Running(began, processor) = std::mem::take(&mut self.now) else { return };
        let computing = began.elapsed().saturating_sub(waits.total);
        self.times.computing = self.times.computing.saturating_add(computing);
        let spent = processor_time().zip(processor).map(|(now, before)| now.saturating_sub(before));
        self.times.processor = self.times.processor.saturating_add(spent.unwrap_or_default());
        self.add_waits(waits);
        self.now = Phase::Outside(Stopwatch::start());
    }
}

impl StepMeter {
    /// Returns the worker that makes the others wait, and why, if there is one.
    pub fn straggler(&self) -> Option<Straggler> {
        lock(&self.all).stragglers.straggler()
    }

    /// Returns the mean times of each worker in a step, in the order of ranks. The list is empty before the first step.
    pub fn means(&self) -> Vec<WorkerTimes> {
        lock(&self.all).stragglers.means()
    }

    /// Adds `time` to the time in which the program waited for the input of this worker.
    pub fn record_input(&self, time: Duration) {
        let input = &mut lock(&self.mine).input;
        *input = input.saturating_add(time);
    }

    /// Returns the mean times of this worker's steps since the previous call. `waits` are the waits since the last step
    /// ended.
    pub fn take(&self, waits: Waits<'_>) -> StepTimes {
        lock(&self.mine).take(waits)
    }

    /// Records that a step begins on this worker alone. `waits` are the waits since the last step ended.
    pub fn begin_alone(&self, waits: Waits<'_>) {
        let mine = &mut *lock(&self.mine);
        mine.leave_outside(waits);
        mine.now = Phase::Running(Stopwatch::start(), processor_time());
    }

    /// Adds the times of all workers since their previous steps began, in the order of ranks. Returns
    /// the straggler, unless it has been returned before.
    pub fn add(&self, all: &[StepTimes]) -> Option<Straggler> {
        lock(&self.all).add(all)
    }

    /// Records that a step begins. `waits` are the waits for the others to begin it.
    pub fn begin(&self, waits: Waits<'_>) {
        lock(&self.mine).begin(waits);
    }

    /// Records that the step has ended on this worker. `waits` are the waits since the step began.
    pub fn end(&self, waits: Waits<'_>) {
        lock(&self.mine).end(waits);
    }

    /// Discards the times of all workers, because the workers have changed.
    pub fn forget(&self) {
        *lock(&self.all) = All::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn waits(by_worker: &[Duration]) -> Waits<'_> {
        Waits { total: by_worker.iter().sum(), by_worker }
    }

    #[test]
    fn waits_count_between_two_steps_and_not_before_the_first_or_after_a_failed_one() {
        let mut mine = Mine::default();
        for _ in 0..2 {
            // A rendezvous, the creation of the model, and the wait for the others to begin.
            assert_eq!(mine.take(waits(&[Duration::ZERO, 100 * SECOND])), StepTimes::default());
            mine.begin(waits(&[Duration::ZERO, 100 * SECOND]));
        }
        mine.end(waits(&[Duration::ZERO, SECOND]));
        let times = mine.take(waits(&[Duration::ZERO, Duration::ZERO, 3 * SECOND]));
        assert_eq!((times.waiting, times.awaited), (4 * SECOND, Some((2, 3 * SECOND))));
        mine.begin(waits(&[Duration::ZERO, 2 * SECOND]));
        mine.end(waits(&[]));
        let times = mine.take(waits(&[]));
        assert_eq!((times.waiting, times.awaited), (2 * SECOND, Some((1, 2 * SECOND))));
    }

    #[test]
    fn times_of_steps_made_alone_are_reported_as_their_mean() {
        let meter = StepMeter::default();
        let none = || waits(&[]);
        meter.begin(none());
        for _ in 0..3 {
            meter.end(waits(&[Duration::ZERO, SECOND]));
            meter.record_input(6 * SECOND);
            meter.begin_alone(none());
        }
        meter.end(none());
        let times = meter.take(waits(&[Duration::ZERO, SECOND]));
        assert_eq!((times.steps, times.waiting, times.awaited), (4, SECOND, Some((1, SECOND))));
        assert_eq!(times.input, 18 * SECOND / 4);
        meter.begin(none());
        meter.end(none());
        assert_eq!(meter.take(none()).steps, 1);
        assert_eq!(meter.take(none()), StepTimes::default());
    }
}
