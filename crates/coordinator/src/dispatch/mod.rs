//! [`Dispatch`]: the assignment of work to workers, as decisions without threads, connections or clocks.
//!
//! Each event is a method call. [`Dispatch::take`] returns the effects for a worker as [`Work`], and
//! [`Dispatch::outcomes`] the [`Outcome`] of each closure, once.
//!
//! | module | contents |
//! |---|---|
//! | `closures` | the closures that have not ended, and the queue of those without a worker |
//! | `resources` | the values that each worker creates for itself |
//! | `worker` | the work of one worker |

// - **INV-60** A closure has exactly one outcome, whatever is lost. A worker runs one at a time, and the result of
//   one that was taken from it is ignored. If a closure times out, it is the one that runs. Tests:
//   `coordinator/src/dispatch/tests.rs`, `coordinator/tests/it/remote.rs`, `simulation/tests/it/scenarios.rs`,
//   `simulation/tests/it/found.rs`.
// - **INV-61** A resource on a worker is in the state after the closures that ended there: a worker that
//   reconnects, and an attempt that is repeated, take the elements of lost and failed attempts. Each element is
//   therefore taken once among closures whose results count, on each worker and for one start of the coordinator.
//   This does not hold for changes: if a lost attempt has made one, it counts, with that attempt's elements, which
//   are taken again. Tests: `coordinator/src/dispatch/tests.rs`, `coordinator/tests/it/local.rs`,
//   `clusters/remote/datasets.rs`, `simulation/tests/it/scenarios.rs`.

mod closures;
mod resources;
#[cfg(test)]
mod tests;
mod worker;

use crate::call::{Call, ClosureId, ResourceId};
use crate::failure::{Failure, FailureKind};
use crate::message::{Done, Work};
use bytes::Bytes;
use closures::Closures;
use resources::{Availability, Resources};
use std::fmt;
use worker::Worker;

/// The outcome of a closure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The sequence number of the closure.
    pub closure: ClosureId,
    /// The encoded result or the failure of the closure.
    pub result: Result<Bytes, Failure>,
}

/// The current task of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// The worker runs a closure.
    Closure(ClosureId),
    /// The worker creates a resource.
    Resource(ResourceId),
}

impl Task {
    /// Returns the closure, if the task is one.
    pub fn closure(self) -> Option<ClosureId> {
        match self {
            Self::Closure(id) => Some(id),
            Self::Resource(_) => None,
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closure(id) => id.fmt(f),
            Self::Resource(id) => id.fmt(f),
        }
    }
}

/// The reason why a closure or a resource is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full. Wait until there is space.
    Full,
    /// A closure has failed. Its failure must be returned first, after all other closures have ended: see
    /// [`Dispatch::take_failure`].
    Failing,
    /// There is no such resource.
    NoResource(ResourceId),
}

/// The settings of a [`Dispatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of closures that wait for a worker.
    pub queue: usize,
    /// The maximum number of closures that are assigned to a worker, including the running one.
    pub window: usize,
    /// The maximum number of times that a closure is retried because its worker disconnected.
    pub losses: u32,
    /// The maximum number of times that a closure is retried because a parameter server did not answer.
    pub server_failures: u32,
}

impl Default for Limits {
    fn default() -> Self {
        // CC-3
        Self { queue: 262_144, window: 16, losses: 5, server_failures: 2 }
    }
}

/// The maximum number of queued closures to search for one whose resources a worker has created.
const SEARCH_LIMIT: usize = 64;

/// The assignment of closures and resources to workers.
#[derive(Debug)]
pub struct Dispatch {
    limits: Limits,
    closures: Closures,
    resources: Resources,
    workers: Vec<Worker>,
    /// The first failure of a closure, until it is returned.
    failure: Option<Failure>,
    /// Whether all closures are being cancelled because one has failed.
    is_cancelling: bool,
    outcomes: Vec<Outcome>,
    /// The number of completed executions of closures.
    run: u64,
    overlaps: u64,
}

impl Dispatch {
    /// Creates a dispatch for `workers` workers, none of which is connected.
    pub fn new(workers: usize, limits: Limits) -> Self {
        Self {
            limits,
            closures: Closures::default(),
            resources: Resources::new(workers),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            failure: None,
            is_cancelling: false,
            outcomes: Vec::new(),
            run: 0,
            overlaps: 0,
        }
    }

    /// Adds a closure to the end of the queue.
    ///
    /// # Errors
    /// Returns a [`Refusal`] if the closure is not accepted.
    pub fn schedule(&mut self, call: Call) -> Result<ClosureId, Refusal> {
        if self.failure.is_some() {
            return Err(Refusal::Failing);
        }
        self.check(&call)?;
        if self.closures.queued() >= self.limits.queue {
            return Err(Refusal::Full);
        }
        self.resources.add_users(&call);
        Ok(self.closures.add(call))
    }

    /// Adds a resource. Each worker creates it once the worker has created the resources among its arguments.
    ///
    /// # Errors
    /// - [`Refusal::NoResource`]: an argument is not an existing resource.
    pub fn create(&mut self, call: Call) -> Result<ResourceId, Refusal> {
        self.check(&call)?;
        Ok(self.resources.add(call))
    }

    fn check(&self, call: &Call) -> Result<(), Refusal> {
        let unknown = call.resources().find(|id| !self.resources.has(*id));
        unknown.map_or(Ok(()), |id| Err(Refusal::NoResource(id)))
    }

    /// Drops a resource once the closures and resources that use it have ended or were dropped.
    pub fn forget(&mut self, resource: ResourceId) {
        self.resources.release(resource);
    }

    /// Records that a worker has connected, without work.
    pub fn worker_joined(&mut self, worker: usize) {
        self.workers[worker].is_connected = true;
    }

    /// Records that a worker has disconnected. Its closures are retried on other workers, except that the running one
    /// fails if too many workers have disconnected during it. When the worker reconnects, it creates its resources
    /// again, at their positions.
    pub fn worker_lost(&mut self, worker: usize, why: &str) {
        // A worker runs its closures one at a time, in order, so the others have not begun.
        let running = self.workers[worker].assigned.front().copied();
        self.remove_worker(worker, false);
        if let Some(id) = running
            && self.closures.count_loss(id) > self.limits.losses
        {
            let times = self.limits.losses + 1;
            let text = format!(
                "{times} workers were lost while they ran it, worker {worker} at last ({why}): it may be \
                 the cause; see their logs"
            );
            self.end(id, Err(Failure::new(FailureKind::WorkersLost, text)));
        }
    }

    /// Records that the current task of a worker has exceeded its time limit, so that the task fails. The other
    /// closures of the worker run on other workers. The caller must disconnect the worker.
    pub fn worker_timed_out(&mut self, worker: usize, failure: Failure) {
        let running = self.running(worker).map(|(task, _)| task);
        self.remove_worker(worker, true);
        match running {
            Some(Task::Closure(id)) => self.end(id, Err(failure)),
            Some(Task::Resource(id)) => self.resources.fail(worker, id, failure),
            None => {}
        }
    }

    fn remove_worker(&mut self, worker: usize, keeps_failed: bool) {
        let Worker { assigned, .. } = std::mem::take(&mut self.workers[worker]);
        self.resources.remove_worker(worker, keeps_failed);
        assigned.into_iter().for_each(|id| self.requeue(id));
    }

    fn requeue(&mut self, id: ClosureId) {
        if self.is_cancelling {
            let failure = self.cancelled();
            self.end(id, Err(failure));
        } else {
            self.closures.requeue(id);
        }
    }

    /// Removes and returns the work to send to a worker. Closures whose resources have failed on this worker end, and
    /// closures that wait on another worker may be taken back.
    pub fn take(&mut self, worker: usize) -> Vec<Work> {
        let mut work = Vec::new();
        if !self.workers[worker].is_connected {
            return work;
        }
        work.extend(self.resources.take_dropped(worker).map(Work::Forget));
        if self.can_create(worker) {
            let is_idle = self.workers[worker].assigned.is_empty();
            work.extend(std::iter::from_fn(|| self.resources.take(worker, is_idle)));
        }
        for _ in 0..self.free_slots(worker) {
            let Some(one) = self.next(worker) else { break };
            work.push(one);
        }
        if self.workers[worker].assigned.is_empty() && self.closures.queued() == 0 {
            self.reclaim();
        }
        // A returned closure does not also report its cancellation; its outcome has the reason.
        work.extend(self.workers[worker].take_returning().map(Work::Return));
        work.extend(self.workers[worker].take_cancelled().map(Work::Cancel));
        work
    }

    /// Returns whether [`take`](Self::take) may return work for a worker.
    pub fn has_work(&self, worker: usize) -> bool {
        let state = &self.workers[worker];
        state.is_connected
            && (state.has_messages()
                || self.resources.has_dropped(worker)
                || (self.can_create(worker) && self.resources.has_next(worker, state.assigned.is_empty()))
                || (self.free_slots(worker) > 0
                    && self
                        .candidates()
                        .any(|(_, call)| self.resources.availability(worker, call) != Availability::NotYet))
                || (state.assigned.is_empty()
                    && self.closures.queued() == 0
                    && self.workers.iter().any(|other| other.waiting() > 0)))
    }

    /// Returns whether a worker may receive resources to create. It may not while closures wait on it, because it would
    /// create the resources first. The worker's current task is thus always known: its first closure or, without
    /// closures, the first resource.
    fn can_create(&self, worker: usize) -> bool {
        self.workers[worker].assigned.len() <= 1
    }

    /// Returns the number of closures that a worker may receive in addition: one to run, and some in advance if
    /// closures are short and many are queued. Returns 0 while the worker creates a resource, and if it should create
    /// one next.
    fn free_slots(&self, worker: usize) -> usize {
        if self.resources.creating(worker).is_some() || self.resources.has_next(worker, true) {
            return 0;
        }
        let state = &self.workers[worker];
        let many = self.closures.queued() / (4 * self.workers.len());
        let ahead = if state.pace.is_quick() { many } else { 0 };
        (1 + ahead).min(self.limits.window).saturating_sub(state.assigned.len())
    }

    fn candidates(&self) -> impl Iterator<Item = (ClosureId, &Call)> {
        self.closures.queue().take(SEARCH_LIMIT)
    }

    /// Assigns to a worker the next closure of the queue that it can run, and returns it as work; `None` if there is
    /// none. Closures that can never run on this worker fail.
    fn next(&mut self, worker: usize) -> Option<Work> {
        loop {
            let uses = self.candidates().map(|(id, call)| (id, self.resources.availability(worker, call)));
            let (id, uses) = uses.into_iter().find(|(_, uses)| *uses != Availability::NotYet)?;
            if let Availability::Failed(failure) = uses {
                let function = self.closures.call(id)?.function.clone();
                self.end(id, Err(failure.at(&function, Some(id), worker)));
                continue;
            }
            let call = self.closures.start(id)?;
            self.workers[worker].assign(id, self.run);
            return Some(Work::Call { closure: id, call });
        }
    }

    /// Takes back half of the closures that wait on a worker, because another worker is idle. Selects the worker on
    /// which the most closures wait.
    fn reclaim(&mut self) {
        let most = self.workers.iter_mut().max_by_key(|worker| worker.waiting());
        if let Some(worker) = most.filter(|worker| worker.waiting() > 0) {
            worker.reclaim();
        }
    }

    /// Records a result of a worker. The result of a closure that is no longer assigned to the worker is ignored. If a
    /// parameter server did not answer during a closure, it is retried a limited number of times.
    pub fn record_result(&mut self, worker: usize, done: Done) {
        match done {
            Done::Created { resource, result } => self.resources.record_created(worker, resource, result),
            Done::Returned(closure) => {
                if self.workers[worker].unassign(closure) {
                    self.requeue(closure);
                }
            }
            Done::Called { closure, result, micros, positions } => {
                if !self.workers[worker].unassign(closure) {
                    return;
                }
                let state = &mut self.workers[worker];
                state.pace.add(micros);
                self.overlaps += self.run - state.began_at;
                self.run += 1;
                state.began_at = self.run;
                for (resource, position) in positions {
                    self.resources.record_position(worker, resource, position);
                }
                match result {
                    Err(failure) if failure.kind == FailureKind::Server && self.will_retry(closure) => {
                        self.requeue(closure);
                    }
                    result => self.end(closure, result),
                }
            }
        }
    }

    // T5: retries are counted for each closure, and the count is dropped with it.
    fn will_retry(&mut self, closure: ClosureId) -> bool {
        self.closures.server_failed(closure) <= self.limits.server_failures
    }

    fn end(&mut self, closure: ClosureId, result: Result<Bytes, Failure>) {
        let Some(call) = self.closures.end(closure) else { return };
        self.resources.remove_users(&call);
        if let Err(failure) = &result {
            self.failure.get_or_insert_with(|| failure.clone());
        }
        self.outcomes.push(Outcome { closure, result });
    }

    /// Returns the outcomes of the closures that have ended since the last call.
    pub fn outcomes(&mut self) -> std::vec::Drain<'_, Outcome> {
        self.outcomes.drain(..)
    }

    /// Returns whether a closure has failed and its failure was not [taken](Self::take_failure) yet.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Cancels all closures after one has failed. Queued closures end immediately. Those that wait on a worker end when
    /// the worker has returned them, and running ones when they notice the cancellation.
    pub fn cancel(&mut self) {
        // CC-7
        self.is_cancelling = true;
        self.workers.iter_mut().for_each(Worker::cancel);
        let queued: Vec<_> = self.closures.queue().map(|(id, _)| id).collect();
        queued.into_iter().for_each(|id| self.requeue(id));
    }

    /// Returns whether all closures are being cancelled because one has failed.
    pub fn is_cancelling(&self) -> bool {
        self.is_cancelling
    }

    fn cancelled(&self) -> Failure {
        let why = self.failure.as_ref().map(|failure| format!(" because another one failed ({failure})"));
        let text = format!("it was cancelled{}; schedule it again", why.unwrap_or_default());
        Failure::new(FailureKind::Cancelled, text)
    }

    /// Returns the failure of a closure, once, after all closures have ended; otherwise `None`. From then on, closures
    /// can be scheduled again.
    pub fn take_failure(&mut self) -> Option<Failure> {
        if self.failure.is_none() || !self.is_idle() {
            return None;
        }
        self.is_cancelling = false;
        self.failure.take()
    }

    /// Returns whether all closures have ended.
    pub fn is_idle(&self) -> bool {
        self.closures.len() == 0
    }

    /// Returns the number of closures that wait for a worker.
    pub fn queued(&self) -> usize {
        self.closures.queued()
    }

    /// Returns the number of completed executions, and the number of other executions that ended during one, summed
    /// over all. If each execution makes one update, the sum is the total number of updates that the values used by
    /// executions lacked.
    pub fn overlaps(&self) -> (u64, u64) {
        (self.run, self.overlaps)
    }

    /// Returns the oldest closure that has not ended. If all have ended, returns the next closure that will be
    /// scheduled.
    pub fn floor(&self) -> ClosureId {
        self.closures.floor()
    }

    /// Returns whether a worker is connected.
    pub fn is_connected(&self, worker: usize) -> bool {
        self.workers[worker].is_connected
    }

    /// Returns the current task of a worker; `None` if the worker is idle.
    pub fn running(&self, worker: usize) -> Option<(Task, &Call)> {
        let closure = self.assigned(worker).next().map(|(id, call)| (Task::Closure(id), call));
        closure.or_else(|| self.resources.creating(worker).map(|(id, call)| (Task::Resource(id), call)))
    }

    /// Returns the closures that are assigned to a worker, of which it runs the first one.
    pub fn assigned(&self, worker: usize) -> impl Iterator<Item = (ClosureId, &Call)> {
        self.workers[worker].assigned.iter().filter_map(|id| Some((*id, self.closures.call(*id)?)))
    }

    /// Returns the resources that a worker still has to create.
    pub fn missing(&self, worker: usize) -> Vec<ResourceId> {
        self.resources.missing(worker)
    }

    /// Returns the position of a resource on each worker after the closures that have ended; `None` if the resource
    /// does not exist.
    pub fn positions(&self, resource: ResourceId) -> Option<&[Option<Bytes>]> {
        self.resources.positions(resource)
    }
}
