//! Which worker does what: decisions without threads, connections or clocks.
//!
//! Everything that happens comes in as a call of a method, and what follows of it comes out: as [`Work`] for a worker, taken by
//! [`Dispatch::take`], and as the [`Outcome`] of each closure, once.

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
use resources::{Resources, Use};
use std::fmt;
use worker::Worker;

/// How a closure ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which closure.
    pub closure: ClosureId,
    /// The bytes of its result.
    pub result: Result<Bytes, Failure>,
}

/// What a worker is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// It runs a closure.
    Closure(ClosureId),
    /// It makes a resource.
    Resource(ResourceId),
}

impl Task {
    /// The closure, if it is one.
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

/// Why a closure or a resource is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full: wait until there is room.
    Full,
    /// A closure has failed, which is told first, when all others have ended: see [`Dispatch::settle`].
    Failing,
    /// There is no such resource.
    NoResource(ResourceId),
}

/// The settings of a [`Dispatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many closures may wait for a worker.
    pub queue: usize,
    /// How many closures a worker may have, the one that it runs included.
    pub window: usize,
    /// How often a closure is run again because its worker was lost.
    pub losses: u32,
    /// How often a closure is run again because a parameter server did not answer.
    pub server_failures: u32,
}

impl Default for Limits {
    fn default() -> Self {
        // CC-3
        Self { queue: 262_144, window: 16, losses: 5, server_failures: 2 }
    }
}

/// So many closures of the queue are looked at for one whose resources a worker has.
const LOOK: usize = 64;

/// Which worker does what.
#[derive(Debug)]
pub struct Dispatch {
    limits: Limits,
    closures: Closures,
    resources: Resources,
    workers: Vec<Worker>,
    /// The first failure, until it is told.
    failure: Option<Failure>,
    /// Whether all closures are being ended because of it.
    is_settling: bool,
    outcomes: Vec<Outcome>,
    /// How many closures workers have run to their end.
    run: u64,
    overlaps: u64,
}

impl Dispatch {
    /// So many workers, none of which is there yet.
    pub fn new(workers: usize, limits: Limits) -> Self {
        Self {
            limits,
            closures: Closures::default(),
            resources: Resources::new(workers),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            failure: None,
            is_settling: false,
            outcomes: Vec::new(),
            run: 0,
            overlaps: 0,
        }
    }

    /// Puts a closure at the end of the queue.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn schedule(&mut self, call: Call) -> Result<ClosureId, Refusal> {
        if self.failure.is_some() {
            return Err(Refusal::Failing);
        }
        self.check(&call)?;
        if self.closures.queued() >= self.limits.queue {
            return Err(Refusal::Full);
        }
        self.resources.hold(&call);
        Ok(self.closures.add(call))
    }

    /// A resource that each worker is to make, as soon as it has those among its arguments.
    ///
    /// # Errors
    /// [`Refusal::NoResource`].
    pub fn create(&mut self, call: Call) -> Result<ResourceId, Refusal> {
        self.check(&call)?;
        Ok(self.resources.add(call))
    }

    fn check(&self, call: &Call) -> Result<(), Refusal> {
        let unknown = call.resources().find(|id| !self.resources.has(*id));
        unknown.map_or(Ok(()), |id| Err(Refusal::NoResource(id)))
    }

    /// Lets go of a resource, once the closures that use it have ended.
    pub fn forget(&mut self, resource: ResourceId) {
        self.resources.release(resource);
    }

    /// A worker is there that was not, and has nothing yet.
    pub fn joined(&mut self, worker: usize) {
        self.workers[worker].is_there = true;
    }

    /// A worker is lost. What it had is run elsewhere, and what it has made is made again where it was, when it is back.
    pub fn lost(&mut self, worker: usize, why: &str) {
        // It runs one closure at a time, in order: the others have not begun.
        let running = self.workers[worker].had.front().copied();
        self.leave(worker, false);
        if let Some(id) = running
            && self.closures.lost(id) > self.limits.losses
        {
            let times = self.limits.losses + 1;
            let text = format!(
                "{times} workers were lost while they ran it, worker {worker} at last ({why}): it may be what ends them; see their logs"
            );
            self.end(id, Err(Failure::new(FailureKind::WorkersLost, text)));
        }
    }

    /// What a worker is busy with has not ended in time, and fails. What else the worker had is run elsewhere; it is to be given up.
    pub fn late(&mut self, worker: usize, failure: Failure) {
        let running = self.running(worker).map(|(task, _)| task);
        self.leave(worker, true);
        match running {
            Some(Task::Closure(id)) => self.end(id, Err(failure)),
            Some(Task::Resource(id)) => self.resources.fail(worker, id, failure),
            None => {}
        }
    }

    fn leave(&mut self, worker: usize, keeps_failed: bool) {
        let Worker { had, .. } = std::mem::take(&mut self.workers[worker]);
        self.resources.leave(worker, keeps_failed);
        had.into_iter().for_each(|id| self.put_back(id));
    }

    fn put_back(&mut self, id: ClosureId) {
        if self.is_settling {
            let failure = self.cancelled();
            self.end(id, Err(failure));
        } else {
            self.closures.put_back(id);
        }
    }

    /// What a worker is to do now.
    pub fn take(&mut self, worker: usize) -> Vec<Work> {
        let mut work = Vec::new();
        if !self.workers[worker].is_there {
            return work;
        }
        work.extend(self.resources.take_forgotten(worker).map(Work::Forget));
        if self.can_make(worker) {
            let is_idle = self.workers[worker].had.is_empty();
            work.extend(std::iter::from_fn(|| self.resources.take(worker, is_idle)));
        }
        for _ in 0..self.room(worker) {
            let Some(one) = self.next(worker) else { break };
            work.push(one);
        }
        if self.workers[worker].had.is_empty() && self.closures.queued() == 0 {
            self.ask_back();
        }
        // What is given back is not cancelled: its outcome says why.
        work.extend(self.workers[worker].take_returning().map(Work::Return));
        work.extend(self.workers[worker].take_cancelled().map(Work::Cancel));
        work
    }

    /// Whether [`take`](Self::take) may give a worker something to do.
    pub fn has_work(&self, worker: usize) -> bool {
        let state = &self.workers[worker];
        state.is_there
            && (state.has_messages()
                || self.resources.has_forgotten(worker)
                || (self.can_make(worker) && self.resources.has_next(worker, state.had.is_empty()))
                || (self.room(worker) > 0
                    && self.candidates().any(|(_, call)| self.resources.of(worker, call) != Use::NotYet))
                || (state.had.is_empty()
                    && self.closures.queued() == 0
                    && self.workers.iter().any(|other| other.waiting() > 0)))
    }

    /// Whether a worker may get resources to make: not while closures wait there, before which it would make them. So it is known what
    /// it is busy with: the closure that it has or, if it has none, the first resource.
    fn can_make(&self, worker: usize) -> bool {
        self.workers[worker].had.len() <= 1
    }

    /// How many more closures a worker may get now: one to run and, while closures are short and many wait, some ahead; none while it
    /// makes a resource, or is to make one when it has nothing else to do.
    fn room(&self, worker: usize) -> usize {
        if self.resources.making(worker).is_some() || self.resources.has_next(worker, true) {
            return 0;
        }
        let state = &self.workers[worker];
        let many = self.closures.queued() / (4 * self.workers.len());
        let ahead = if state.pace.is_quick() { many } else { 0 };
        (1 + ahead).min(self.limits.window).saturating_sub(state.had.len())
    }

    fn candidates(&self) -> impl Iterator<Item = (ClosureId, &Call)> {
        self.closures.queue().take(LOOK)
    }

    /// The next closure of the queue that a worker can run. Those that it never can end here.
    fn next(&mut self, worker: usize) -> Option<Work> {
        loop {
            let uses = self.candidates().map(|(id, call)| (id, self.resources.of(worker, call)));
            let (id, uses) = uses.into_iter().find(|(_, uses)| *uses != Use::NotYet)?;
            if let Use::Failed(failure) = uses {
                let function = self.closures.call(id)?.function.clone();
                self.end(id, Err(failure.at(&function, Some(id), worker)));
                continue;
            }
            let call = self.closures.start(id)?;
            self.workers[worker].give(id, self.run);
            return Some(Work::Call { closure: id, call });
        }
    }

    /// Asks the worker that has most closures waiting for half of them: another one has nothing to do.
    fn ask_back(&mut self) {
        let most = self.workers.iter_mut().max_by_key(|worker| worker.waiting());
        if let Some(worker) = most.filter(|worker| worker.waiting() > 0) {
            worker.ask_back();
        }
    }

    /// What a worker has done.
    pub fn done(&mut self, worker: usize, done: Done) {
        match done {
            Done::Made { resource, result } => self.resources.made(worker, resource, result),
            Done::Returned(closure) => {
                if self.workers[worker].give_up(closure) {
                    self.put_back(closure);
                }
            }
            Done::Called { closure, result, micros, positions } => {
                if !self.workers[worker].give_up(closure) {
                    return;
                }
                let state = &mut self.workers[worker];
                state.pace.add(micros);
                self.overlaps += self.run - state.began_at;
                self.run += 1;
                state.began_at = self.run;
                for (resource, position) in positions {
                    self.resources.moved(worker, resource, position);
                }
                match result {
                    Err(failure) if failure.kind == FailureKind::Server && self.is_tried_again(closure) => {
                        self.put_back(closure);
                    }
                    result => self.end(closure, result),
                }
            }
        }
    }

    // T5: what counts is the closure's own, and gone with it.
    fn is_tried_again(&mut self, closure: ClosureId) -> bool {
        self.closures.server_failed(closure) <= self.limits.server_failures
    }

    fn end(&mut self, closure: ClosureId, result: Result<Bytes, Failure>) {
        let Some(call) = self.closures.end(closure) else { return };
        self.resources.let_go(&call);
        if let Err(failure) = &result {
            self.failure.get_or_insert_with(|| failure.clone());
        }
        self.outcomes.push(Outcome { closure, result });
    }

    /// The closures that have ended since this was asked last.
    pub fn outcomes(&mut self) -> std::vec::Drain<'_, Outcome> {
        self.outcomes.drain(..)
    }

    /// Whether a closure has failed of which [`settle`](Self::settle) has not told yet.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Ends all closures because one has failed: those that wait at once, those that run when they see that nobody wants them.
    pub fn cancel(&mut self) {
        // CC-7
        self.is_settling = true;
        self.workers.iter_mut().for_each(Worker::cancel);
        let queued: Vec<_> = self.closures.queue().map(|(id, _)| id).collect();
        queued.into_iter().for_each(|id| self.put_back(id));
    }

    /// Whether all closures are being ended because one has failed.
    pub fn is_settling(&self) -> bool {
        self.is_settling
    }

    fn cancelled(&self) -> Failure {
        let why = self.failure.as_ref().map(|failure| format!(" because another one failed ({failure})"));
        let text = format!("it was cancelled{}; schedule it again", why.unwrap_or_default());
        Failure::new(FailureKind::Cancelled, text)
    }

    /// The failure, once all closures have ended; it is told once, and then the queue takes closures again.
    pub fn settle(&mut self) -> Option<Failure> {
        if self.failure.is_none() || !self.is_idle() {
            return None;
        }
        self.is_settling = false;
        self.failure.take()
    }

    /// Whether all closures have ended.
    pub fn is_idle(&self) -> bool {
        self.closures.len() == 0
    }

    /// How many closures wait for a worker.
    pub fn queued(&self) -> usize {
        self.closures.queued()
    }

    /// How many closures workers have run to their end, and how often one did while another was running: of all of them the sum of how
    /// many others ended between their begin and their end. Where each makes an update, that is how many updates its values lacked.
    pub fn overlaps(&self) -> (u64, u64) {
        (self.run, self.overlaps)
    }

    /// All closures before this one have ended.
    pub fn floor(&self) -> ClosureId {
        self.closures.floor()
    }

    /// Whether a worker is there.
    pub fn is_there(&self, worker: usize) -> bool {
        self.workers[worker].is_there
    }

    /// What a worker is busy with.
    pub fn running(&self, worker: usize) -> Option<(Task, &Call)> {
        let closure = self.had(worker).next().map(|(id, call)| (Task::Closure(id), call));
        closure.or_else(|| self.resources.making(worker).map(|(id, call)| (Task::Resource(id), call)))
    }

    /// The closures that a worker has; it runs the first one.
    pub fn had(&self, worker: usize) -> impl Iterator<Item = (ClosureId, &Call)> {
        self.workers[worker].had.iter().filter_map(|id| Some((*id, self.closures.call(*id)?)))
    }

    /// The resources that a worker has not made yet.
    pub fn missing(&self, worker: usize) -> Vec<ResourceId> {
        self.resources.missing(worker)
    }

    /// Where a resource is on each worker, as of the closures that have ended.
    pub fn positions(&self, resource: ResourceId) -> Option<&[Option<Bytes>]> {
        self.resources.positions(resource)
    }
}
