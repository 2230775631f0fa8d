//! [`Hub`]: the state that the program's threads and the worker threads share.

use super::value::Value;
use crate::call::ClosureId;
use crate::dispatch::{Dispatch, Limits, Task};
use crate::failure::{Failure, FailureKind};
use crate::message::{Done, Work};
use distribute_cluster::deadline::Stopwatch;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The state that the threads of a coordinator share, and the condition variables on which they wait.
pub(super) struct Hub {
    state: Mutex<State>,
    /// Notified when closures have ended, or workers have connected or disconnected.
    progress: Condvar,
    /// Notified when there may be work for a worker; one condition variable for each worker.
    work: Vec<Condvar>,
}

pub(super) struct State {
    pub dispatch: Dispatch,
    pub values: HashMap<ClosureId, Arc<Value>>,
    pub workers: Vec<WorkerRecord>,
    /// The number of closures that have ended.
    pub ended: u64,
    /// The number of threads that wait in `join`.
    pub joining: usize,
    pub is_stopped: bool,
    /// The time since the start, or since the last worker disconnected; `None` if a worker is connected.
    no_worker_since: Option<Stopwatch>,
}

/// The coordinator's record of a worker's connection and of its current task.
#[derive(Debug)]
pub(super) struct WorkerRecord {
    /// The reason why the worker is not connected, if it is not.
    pub disconnect_reason: Option<String>,
    /// The kind of failure with which the worker has rejected this coordinator, if it has. Waiting for the worker is
    /// then useless.
    pub refused: Option<FailureKind>,
    /// The current task of the worker, and a stopwatch from the start of the task.
    running: Option<(Task, Stopwatch)>,
    /// The number of times that the worker disconnected.
    pub losses: u64,
}

impl Hub {
    pub fn new(workers: usize, limits: Limits) -> Self {
        let not_connected = || WorkerRecord {
            disconnect_reason: Some("it has not answered yet".to_owned()),
            refused: None,
            running: None,
            losses: 0,
        };
        let state = State {
            dispatch: Dispatch::new(workers, limits),
            values: HashMap::new(),
            workers: (0..workers).map(|_| not_connected()).collect(),
            ended: 0,
            joining: 0,
            is_stopped: false,
            no_worker_since: Some(Stopwatch::start()),
        };
        let work = (0..workers).map(|_| Condvar::new()).collect();
        Self { state: Mutex::new(state), progress: Condvar::new(), work }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits at most `slice` for closures to end, or for workers to connect or disconnect.
    pub fn wait(&self, state: &mut MutexGuard<'_, State>, slice: Duration) {
        self.progress.wait_for(state, slice);
    }

    /// Waits at most `slice` for work for a worker, which may or may not exist when this returns.
    pub fn wait_for_work(&self, worker: usize, state: &mut MutexGuard<'_, State>, slice: Duration) {
        self.work[worker].wait_for(state, slice);
    }

    /// Wakes the thread of one idle worker that has work, if there is one. Call this after queueing a closure.
    pub fn wake_one(&self, state: &State) {
        let idle = (0..self.work.len()).find(|worker| {
            state.dispatch.is_connected(*worker)
                && state.dispatch.assigned(*worker).next().is_none()
                && state.dispatch.has_work(*worker)
        });
        if let Some(worker) = idle {
            self.work[worker].notify_one();
        }
    }

    /// Delivers the results of ended closures to the threads that wait for them, and wakes other threads that may be
    /// able to continue. Also records whether a worker is connected.
    pub fn publish_outcomes(&self, state: &mut State) {
        let State { dispatch, values, ended, .. } = state;
        for outcome in dispatch.outcomes() {
            *ended += 1;
            if let Some(value) = values.remove(&outcome.closure) {
                value.set(outcome.result);
            }
        }
        let is_alone = !(0..self.work.len()).any(|worker| state.dispatch.is_connected(worker));
        if is_alone {
            state.no_worker_since.get_or_insert_with(Stopwatch::start);
        } else {
            state.no_worker_since = None;
        }
        self.progress.notify_all();
        for (worker, work) in self.work.iter().enumerate() {
            if state.dispatch.has_work(worker) {
                work.notify_one();
            }
        }
    }

    /// Wakes all threads.
    pub fn wake_all(&self) {
        self.progress.notify_all();
        for work in &self.work {
            work.notify_all();
        }
    }
}

impl State {
    /// Removes and returns the work to send to a worker, together with the oldest closure that has not ended.
    pub fn take(&mut self, worker: usize) -> (ClosureId, Vec<Work>) {
        let work = self.dispatch.take(worker);
        self.record_task_start(worker);
        (self.dispatch.floor(), work)
    }

    /// Records the results of a worker.
    pub fn record_results(&mut self, worker: usize, done: Vec<Done>) {
        done.into_iter().for_each(|done| self.dispatch.record_result(worker, done));
        self.record_task_start(worker);
    }

    /// Returns the kind of failure with which a worker has rejected this coordinator; `None` if none has.
    pub fn refused(&self) -> Option<FailureKind> {
        self.workers.iter().find_map(|seen| seen.refused)
    }

    pub fn worker_joined(&mut self, worker: usize) {
        self.dispatch.worker_joined(worker);
        let seen = &mut self.workers[worker];
        (seen.disconnect_reason, seen.refused, seen.running) = (None, None, None);
    }

    /// Cancels all closures after one has failed, unless they are already being cancelled. Running closures then have a
    /// limited time to end.
    pub fn cancel(&mut self) {
        if self.dispatch.is_cancelling() {
            return;
        }
        self.dispatch.cancel();
        let running = self.workers.iter_mut().filter_map(|seen| seen.running.as_mut());
        running.for_each(|(_, since)| *since = Stopwatch::start());
    }

    pub fn worker_lost(&mut self, worker: usize, why: &str) {
        self.dispatch.worker_lost(worker, why);
        self.remove_worker(worker, why);
    }

    /// Records that a worker has exceeded the time limit of its task, or the one after a cancellation.
    pub fn worker_timed_out(&mut self, worker: usize, failure: Failure) {
        let why = failure.to_string();
        self.dispatch.worker_timed_out(worker, failure);
        self.remove_worker(worker, &why);
    }

    fn remove_worker(&mut self, worker: usize, why: &str) {
        let seen = &mut self.workers[worker];
        seen.disconnect_reason = Some(why.to_owned());
        seen.losses += 1;
        self.record_task_start(worker);
    }

    /// Records the start of the worker's current task, if the task is a new one.
    fn record_task_start(&mut self, worker: usize) {
        let now = self.dispatch.running(worker).map(|(task, _)| task);
        let running = &mut self.workers[worker].running;
        if running.map(|(task, _)| task) != now {
            *running = now.map(|task| (task, Stopwatch::start()));
        }
    }

    /// Returns the current task of a worker, and its running time; `None` if the worker is idle.
    pub fn running(&self, worker: usize) -> Option<(Task, Duration)> {
        self.workers[worker].running.map(|(task, since)| (task, since.elapsed()))
    }

    /// Returns the time for which no worker has been connected; `None` if a worker is connected.
    pub fn time_without_workers(&self) -> Option<Duration> {
        self.no_worker_since.map(|since| since.elapsed())
    }
}
