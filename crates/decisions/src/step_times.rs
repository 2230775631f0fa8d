//! The time that a worker spends on a step, by activity. Workers exchange these times when the next step begins.

use crate::stragglers::{Straggler, StragglerCause, Stragglers, WorkerTimes};
use distribute_base::internal::lock;
use distribute_cluster::{Stopwatch, processor_time};
use distribute_collective::group::Waits;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::time::Duration;

/// The time that a worker has spent since its previous step began, by activity. It is only used to find stragglers; the
/// results of training do not depend on it.
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
}

impl StepTimes {
    /// Returns the time in which this worker did not wait for others, but others may have waited for it.
    pub fn own(&self) -> Duration {
        self.computing.saturating_add(self.input).saturating_add(self.outside)
    }
}

/// A meter of the times of this worker's steps, which also stores those of all workers.
#[derive(Debug, Default)]
pub struct StepMeter {
    mine: Mutex<Mine>,
    all: Mutex<All>,
}

/// The times of this worker since its previous step began.
#[derive(Debug, Default)]
struct Mine {
    now: Phase,
    times: StepTimes,
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
    /// The times since the last step began have been taken, and the next step is about to begin.
    Beginning,
}

/// The times of all workers, and the stragglers that have already been returned.
#[derive(Debug, Default)]
struct All {
    stragglers: Stragglers,
    found: Vec<(usize, StragglerCause)>,
    /// The straggler, and the time for which the same worker has been the straggler.
    lasting: Option<(Straggler, Duration)>,
}

impl All {
    /// Adds the times of all workers in a step. Returns the straggler, unless it has been returned before.
    fn add(&mut self, times: &[StepTimes]) -> Option<Straggler> {
        let step = self.stragglers.add(times);
        let before = self.lasting.take();
        let straggler = self.stragglers.straggler()?;
        let same = before.filter(|(earlier, _)| earlier.worker == straggler.worker);
        self.lasting = Some((straggler, same.map_or(Duration::ZERO, |(_, time)| time.saturating_add(step))));
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

    /// Returns the times since the previous call. `waits` are the waits since the last step ended. If no step has ended
    /// since the previous call, all times are zero, so that the creation of a model or a rendezvous does not count.
    fn take(&mut self, waits: Waits<'_>) -> StepTimes {
        let Phase::Outside(since) = std::mem::take(&mut self.now) else {
            self.awaited.fill(Duration::ZERO);
            self.times = StepTimes::default();
            return StepTimes::default();
        };
        self.now = Phase::Beginning;
        self.times.outside = since.elapsed().saturating_sub(waits.total).saturating_sub(self.times.input);
        self.add_waits(waits);
        let longest = self.awaited.iter().copied().enumerate().max_by_key(|(_, time)| *time);
        self.times.awaited = longest.filter(|(_, time)| !time.is_zero());
        self.awaited.fill(Duration::ZERO);
        std::mem::take(&mut self.times)
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
        self.times.computing = began.elapsed().saturating_sub(waits.total);
        let spent = processor_time().zip(processor).map(|(now, before)| now.saturating_sub(before));
        self.times.processor = spent.unwrap_or_default();
        self.add_waits(waits);
        self.now = Phase::Outside(Stopwatch::start());
    }
}

impl StepMeter {
    /// Returns the worker that makes the others wait, and why, if there is one.
    pub fn straggler(&self) -> Option<Straggler> {
        lock(&self.all).stragglers.straggler()
    }

    /// Returns the straggler, if there is one, and the time of the steps since it was found. The time begins again if
    /// another worker is slower.
    pub fn lasting_straggler(&self) -> Option<(Straggler, Duration)> {
        lock(&self.all).lasting
    }

    /// Returns the mean times of each worker in a step, in the order of ranks. The list is empty before the first step.
    pub fn means(&self) -> Vec<WorkerTimes> {
        lock(&self.all).stragglers.means()
    }

    /// Adds `time` to the time in which the program waited for the input of this worker.
    pub fn record_input(&self, time: Duration) {
        let input = &mut lock(&self.mine).times.input;
        *input = input.saturating_add(time);
    }

    /// Returns the times of this worker since its previous step began. `waits` are the waits since that step ended.
    pub fn take(&self, waits: Waits<'_>) -> StepTimes {
        lock(&self.mine).take(waits)
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
    fn the_time_of_a_straggler_begins_again_with_another_one() {
        let times = |worker: usize| {
            let of = |seconds: u32| StepTimes { computing: seconds * SECOND, ..StepTimes::default() };
            let mut all = [of(1); 3];
            all[worker] = of(2);
            all
        };
        let meter = StepMeter::default();
        let add = |worker, steps| {
            for _ in 0..steps {
                meter.add(&times(worker));
            }
        };
        let lasting = || meter.lasting_straggler().map(|(straggler, time)| (straggler.worker, time));
        add(1, 19);
        assert_eq!(lasting(), None);
        add(1, 1);
        assert_eq!(lasting(), Some((1, Duration::ZERO)));
        add(1, 30);
        assert_eq!(lasting(), Some((1, 60 * SECOND)));
        add(2, 200);
        let (worker, time) = lasting().unwrap();
        assert!(worker == 2 && time < 400 * SECOND, "{time:?}");
        meter.forget();
        assert_eq!(lasting(), None);
    }
}
