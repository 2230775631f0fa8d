//! The values that each worker creates for itself, and their state on each worker.

use crate::call::{Call, ResourceId};
use crate::failure::{Failure, FailureKind};
use crate::message::Work;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// The number of times a worker tries to create a resource while parameter servers do not answer.
const TRIES: u32 = 3;

/// All resources.
#[derive(Debug)]
pub(super) struct Resources {
    next: u64,
    workers: usize,
    all: BTreeMap<ResourceId, Resource>,
    /// The resources that each worker creates at the moment, in order.
    making: Vec<VecDeque<ResourceId>>,
    /// The resources that each worker should drop.
    forgotten: Vec<Vec<ResourceId>>,
}

#[derive(Debug)]
struct Resource {
    call: Call,
    /// The number of closures and resources that have it as an argument.
    users: usize,
    /// Whether the program has dropped it.
    is_released: bool,
    first: First,
    on: Vec<OnWorker>,
    positions: Vec<Option<Bytes>>,
}

/// The worker that creates the variables of a resource. The others wait, and then find the variables.
#[derive(Debug, PartialEq, Eq)]
enum First {
    Nobody,
    By(usize),
    Made,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OnWorker {
    /// The resource is to be created. The number counts attempts that failed because a parameter server did not
    /// answer.
    Missing(u32),
    Making(u32),
    Made,
    Failed(Failure),
}

/// The availability of a call's resources on a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Use {
    Ready,
    NotYet,
    Failed(Failure),
}

impl Resources {
    pub fn new(workers: usize) -> Self {
        let (making, forgotten) = (vec![VecDeque::new(); workers], vec![Vec::new(); workers]);
        Self { next: 0, workers, all: BTreeMap::new(), making, forgotten }
    }

    pub fn has(&self, id: ResourceId) -> bool {
        self.all.get(&id).is_some_and(|resource| !resource.is_released)
    }

    pub fn add(&mut self, call: Call) -> ResourceId {
        let id = ResourceId(self.next);
        self.next += 1;
        self.hold(&call);
        let (on, positions) = (vec![OnWorker::Missing(0); self.workers], vec![None; self.workers]);
        let resource = Resource { call, users: 0, is_released: false, first: First::Nobody, on, positions };
        self.all.insert(id, resource);
        id
    }

    /// Marks the resources of a call as used, until [`let_go`](Self::let_go).
    pub fn hold(&mut self, call: &Call) {
        for id in call.resources() {
            if let Some(resource) = self.all.get_mut(&id) {
                resource.users += 1;
            }
        }
    }

    pub fn let_go(&mut self, call: &Call) {
        for id in call.resources() {
            if let Some(resource) = self.all.get_mut(&id) {
                resource.users = resource.users.saturating_sub(1);
                self.remove_unused(id);
            }
        }
    }

    pub fn release(&mut self, id: ResourceId) {
        if let Some(resource) = self.all.get_mut(&id) {
            resource.is_released = true;
            self.remove_unused(id);
        }
    }

    /// Removes a resource that is no longer used. While a worker creates it, it stays, because it is that
    /// worker's current task.
    fn remove_unused(&mut self, id: ResourceId) {
        let is_made = self.making.iter().flatten().any(|making| *making == id);
        if is_made || !self.all.get(&id).is_some_and(Resource::is_unused) {
            return;
        }
        let Some(resource) = self.all.remove(&id) else { return };
        for (on, forgotten) in resource.on.iter().zip(&mut self.forgotten) {
            if *on == OnWorker::Made {
                forgotten.push(id);
            }
        }
        self.let_go(&resource.call);
    }

    pub fn take_forgotten(&mut self, worker: usize) -> std::vec::Drain<'_, ResourceId> {
        self.forgotten[worker].drain(..)
    }

    /// Returns whether a worker has the resources of a call.
    pub fn of(&self, worker: usize, call: &Call) -> Use {
        for id in call.resources() {
            match self.all.get(&id).map(|resource| &resource.on[worker]) {
                Some(OnWorker::Made) => {}
                Some(OnWorker::Missing(_) | OnWorker::Making(_)) => return Use::NotYet,
                Some(OnWorker::Failed(failure)) => {
                    let text = format!("{id}, an argument, could not be made: {failure}");
                    // FT-5: a failure is described once, however long the chain of resources is.
                    let failure = match failure.kind {
                        FailureKind::Resource => failure.clone(),
                        _ => Failure::new(FailureKind::Resource, text),
                    };
                    return Use::Failed(Failure { place: None, ..failure });
                }
                None => {
                    return Use::Failed(Failure::new(FailureKind::Resource, format!("there is no {id}")));
                }
            }
        }
        Use::Ready
    }

    /// Returns whether a worker can create a resource now. Other workers may wait for the first one that
    /// creates it, so that one must be idle to begin at once.
    fn is_next(&self, worker: usize, is_idle: bool, resource: &Resource) -> bool {
        let is_free = match resource.first {
            First::Made => true,
            First::Nobody => is_idle,
            First::By(_) => false,
        };
        let is_missing = matches!(resource.on[worker], OnWorker::Missing(_));
        is_free && is_missing && !resource.is_unused() && self.of(worker, &resource.call) != Use::NotYet
    }

    pub fn has_forgotten(&self, worker: usize) -> bool {
        !self.forgotten[worker].is_empty()
    }

    /// Returns whether there is a resource that a worker can create.
    pub fn has_next(&self, worker: usize, is_idle: bool) -> bool {
        self.all.values().any(|resource| self.is_next(worker, is_idle, resource))
    }

    /// Returns the next resource that a worker should create.
    pub fn take(&mut self, worker: usize, is_idle: bool) -> Option<Work> {
        loop {
            let next = self.all.iter().find(|(_, resource)| self.is_next(worker, is_idle, resource));
            let (id, uses) = next.map(|(id, resource)| (*id, self.of(worker, &resource.call)))?;
            let resource = self.all.get_mut(&id)?;
            if let Use::Failed(failure) = uses {
                resource.on[worker] = OnWorker::Failed(failure);
                continue;
            }
            let makes_variables = resource.first != First::Made;
            if makes_variables {
                resource.first = First::By(worker);
            }
            if let OnWorker::Missing(tries) = resource.on[worker] {
                resource.on[worker] = OnWorker::Making(tries);
            }
            self.making[worker].push_back(id);
            let (call, position) = (resource.call.clone(), resource.positions[worker].clone());
            return Some(Work::Make { resource: id, call, makes_variables, position });
        }
    }

    /// Records that a worker has created a resource, or failed to.
    pub fn made(&mut self, worker: usize, id: ResourceId, result: Result<(), Failure>) {
        let Some(resource) = self.all.get_mut(&id) else { return };
        let OnWorker::Making(tries) = resource.on[worker] else { return };
        let is_made = result.is_ok();
        resource.on[worker] = match result {
            Ok(()) => OnWorker::Made,
            Err(failure) if failure.kind == FailureKind::Server && tries + 1 < TRIES => {
                OnWorker::Missing(tries + 1)
            }
            Err(failure) => OnWorker::Failed(failure),
        };
        if resource.first == First::By(worker) {
            resource.first = if is_made { First::Made } else { First::Nobody };
        }
        self.making[worker].retain(|making| *making != id);
        self.remove_unused(id);
    }

    /// Returns the resource that a worker creates at the moment.
    pub fn making(&self, worker: usize) -> Option<(ResourceId, &Call)> {
        let id = *self.making[worker].front()?;
        Some((id, &self.all.get(&id)?.call))
    }

    /// Records that a resource cannot be created on a worker.
    pub fn fail(&mut self, worker: usize, id: ResourceId, failure: Failure) {
        if let Some(resource) = self.all.get_mut(&id) {
            resource.on[worker] = OnWorker::Failed(failure);
        }
    }

    /// Records the new position of a resource after a closure has ended.
    pub fn moved(&mut self, worker: usize, id: ResourceId, position: Bytes) {
        if let Some(resource) = self.all.get_mut(&id) {
            resource.positions[worker] = Some(position);
        }
    }

    /// Records that a worker has lost all its resources. If `keeps_failed`, it does not retry failed ones.
    /// Otherwise two resources that both time out would cause each other to be retried forever.
    pub fn leave(&mut self, worker: usize, keeps_failed: bool) {
        self.forgotten[worker].clear();
        for resource in self.all.values_mut() {
            if !keeps_failed || !matches!(resource.on[worker], OnWorker::Failed(_)) {
                resource.on[worker] = OnWorker::Missing(0);
            }
            if resource.first == First::By(worker) {
                resource.first = First::Nobody;
            }
        }
        std::mem::take(&mut self.making[worker]).into_iter().for_each(|id| self.remove_unused(id));
    }

    /// Returns the resources that a worker has not created yet, and can still create.
    pub fn missing(&self, worker: usize) -> Vec<ResourceId> {
        let is_missing =
            |resource: &Resource| matches!(resource.on[worker], OnWorker::Missing(_) | OnWorker::Making(_));
        self.all.iter().filter(|(_, resource)| is_missing(resource)).map(|(id, _)| *id).collect()
    }

    pub fn positions(&self, id: ResourceId) -> Option<&[Option<Bytes>]> {
        Some(&self.all.get(&id)?.positions)
    }
}

impl Resource {
    fn is_unused(&self) -> bool {
        self.is_released && self.users == 0
    }
}
