//! What the program's threads and those of the workers share: the decisions, the results, and who waits for what.

use super::value::Value;
use crate::call::ClosureId;
use crate::dispatch::{Dispatch, Limits, Task};
use crate::failure::Failure;
use crate::message::{Done, Work};
use distribute_cluster::deadline::Stopwatch;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The state of a coordinator.
pub(super) struct Hub {
    state: Mutex<State>,
    /// Closures have ended, or workers have come or gone.
    progress: Condvar,
    /// For each worker, that there may be something for it to do.
    work: Vec<Condvar>,
}

pub(super) struct State {
    pub dispatch: Dispatch,
    pub values: HashMap<ClosureId, Arc<Value>>,
    pub workers: Vec<Seen>,
    /// How many closures have ended.
    pub ended: u64,
    /// How many threads wait in `join`.
    pub joining: usize,
    pub is_stopped: bool,
    /// Since when no worker has been there.
    nobody: Option<Stopwatch>,
}

/// What is known of a worker beside what it does.
#[derive(Debug)]
pub(super) struct Seen {
    /// Why it is not there.
    pub away: Option<String>,
    /// Whether it has refused this coordinator, so that waiting will not help.
    pub is_refused: bool,
    /// What it is busy with, and since when.
    running: Option<(Task, Stopwatch)>,
    /// How often it was lost.
    pub losses: u64,
}

impl Hub {
    pub fn new(workers: usize, limits: Limits) -> Self {
        let away = || Seen {
            away: Some("it has not answered yet".to_owned()),
            is_refused: false,
            running: None,
            losses: 0,
        };
        let state = State {
            dispatch: Dispatch::new(workers, limits),
            values: HashMap::new(),
            workers: (0..workers).map(|_| away()).collect(),
            ended: 0,
            joining: 0,
            is_stopped: false,
            nobody: Some(Stopwatch::start()),
        };
        let work = (0..workers).map(|_| Condvar::new()).collect();
        Self { state: Mutex::new(state), progress: Condvar::new(), work }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until closures end, or workers come or go, for at most `slice`.
    pub fn wait(&self, state: &mut MutexGuard<'_, State>, slice: Duration) {
        self.progress.wait_for(state, slice);
    }

    /// Waits until there may be something for a worker to do, for at most `slice`.
    pub fn wait_for_work(&self, worker: usize, state: &mut MutexGuard<'_, State>, slice: Duration) {
        self.work[worker].wait_for(state, slice);
    }

    /// A closure was put into the queue: one worker that has none, if there is any, is woken.
    pub fn wake_one(&self, state: &State) {
        let idle = (0..self.work.len()).find(|worker| {
            state.dispatch.is_there(*worker)
                && state.dispatch.had(*worker).next().is_none()
                && state.dispatch.has_work(*worker)
        });
        if let Some(worker) = idle {
            self.work[worker].notify_one();
        }
    }

    /// Gives the results that there are to those who wait for them, and wakes whom this concerns.
    pub fn settle_up(&self, state: &mut State) {
        let State { dispatch, values, ended, .. } = state;
        for outcome in dispatch.outcomes() {
            *ended += 1;
            if let Some(value) = values.remove(&outcome.closure) {
                value.set(outcome.result);
            }
        }
        let nobody = !(0..self.work.len()).any(|worker| state.dispatch.is_there(worker));
        if nobody {
            state.nobody.get_or_insert_with(Stopwatch::start);
        } else {
            state.nobody = None;
        }
        self.progress.notify_all();
        for (worker, work) in self.work.iter().enumerate() {
            if state.dispatch.has_work(worker) {
                work.notify_one();
            }
        }
    }

    /// Wakes everybody.
    pub fn wake_all(&self) {
        self.progress.notify_all();
        for work in &self.work {
            work.notify_all();
        }
    }
}

impl State {
    /// What a worker is to do now, and the closures before which all have ended.
    pub fn take(&mut self, worker: usize) -> (ClosureId, Vec<Work>) {
        let work = self.dispatch.take(worker);
        self.look_at(worker);
        (self.dispatch.floor(), work)
    }

    /// What a worker has done.
    pub fn done(&mut self, worker: usize, done: Vec<Done>) {
        done.into_iter().for_each(|done| self.dispatch.done(worker, done));
        self.look_at(worker);
    }

    pub fn joined(&mut self, worker: usize) {
        self.dispatch.joined(worker);
        let seen = &mut self.workers[worker];
        (seen.away, seen.is_refused, seen.running) = (None, false, None);
    }

    /// Ends all closures because one has failed. What runs has its time to see that from now on.
    pub fn cancel(&mut self) {
        if self.dispatch.is_settling() {
            return;
        }
        self.dispatch.cancel();
        let running = self.workers.iter_mut().filter_map(|seen| seen.running.as_mut());
        running.for_each(|(_, since)| *since = Stopwatch::start());
    }

    pub fn lost(&mut self, worker: usize, why: &str) {
        self.dispatch.lost(worker, why);
        self.left(worker, why);
    }

    /// A worker runs its closure for too long, or too long after nobody wants it any more.
    pub fn late(&mut self, worker: usize, failure: Failure) {
        let why = failure.to_string();
        self.dispatch.late(worker, failure);
        self.left(worker, &why);
    }

    fn left(&mut self, worker: usize, why: &str) {
        let seen = &mut self.workers[worker];
        seen.away = Some(why.to_owned());
        seen.losses += 1;
        self.look_at(worker);
    }

    /// Notes since when a worker is busy with what it does.
    fn look_at(&mut self, worker: usize) {
        let now = self.dispatch.running(worker).map(|(task, _)| task);
        let running = &mut self.workers[worker].running;
        if running.map(|(task, _)| task) != now {
            *running = now.map(|task| (task, Stopwatch::start()));
        }
    }

    /// What a worker is busy with, and for how long.
    pub fn running(&self, worker: usize) -> Option<(Task, Duration)> {
        self.workers[worker].running.map(|(task, since)| (task, since.elapsed()))
    }

    /// For how long no worker has been there.
    pub fn nobody(&self) -> Option<Duration> {
        self.nobody.map(|since| since.elapsed())
    }
}
