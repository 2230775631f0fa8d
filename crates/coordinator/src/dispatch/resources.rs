//! The resources, which each worker creates for itself, and their state on each worker.

use crate::call::{Call, ResourceId};
use crate::failure::{Failure, FailureKind};
use crate::message::Work;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// The maximum number of attempts to create a resource if parameter servers do not answer.
const MAX_ATTEMPTS: u32 = 3;

/// All resources, and their state on each worker.
#[derive(Debug)]
pub(super) struct Resources {
    next: u64,
    workers: usize,
    all: BTreeMap<ResourceId, Resource>,
    /// The resources that each worker is creating, in order.
    creating: Vec<VecDeque<ResourceId>>,
    /// The resources that each worker must be told to drop.
    dropped: Vec<Vec<ResourceId>>,
}

#[derive(Debug)]
struct Resource {
    call: Call,
    /// The number of closures and resources that have the resource as an argument.
    users: usize,
    /// Whether the program has dropped the resource.
    is_released: bool,
    creator: Creator,
    states: Vec<ResourceState>,
    positions: Vec<Option<Bytes>>,
}

/// The worker that creates the variables of a resource. Other workers wait, and then use these variables.
#[derive(Debug, PartialEq, Eq)]
enum Creator {
    None,
    Worker(usize),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ResourceState {
    /// The resource must be created. The number counts attempts that have failed because a parameter server did not
    /// answer.
    Missing(u32),
    Creating(u32),
    Created,
    Failed(Failure),
}

/// The availability on a worker of the resources that a call uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Availability {
    Ready,
    NotYet,
    Failed(Failure),
}

impl Resources {
    pub fn new(workers: usize) -> Self {
        let (creating, dropped) = (vec![VecDeque::new(); workers], vec![Vec::new(); workers]);
        Self { next: 0, workers, all: BTreeMap::new(), creating, dropped }
    }

    pub fn has(&self, id: ResourceId) -> bool {
        self.all.get(&id).is_some_and(|resource| !resource.is_released)
    }

    pub fn add(&mut self, call: Call) -> ResourceId {
        let id = ResourceId(self.next);
        self.next += 1;
        self.add_users(&call);
        let (states, positions) = (vec![ResourceState::Missing(0); self.workers], vec![None; self.workers]);
        let resource =
            Resource { call, users: 0, is_released: false, creator: Creator::None, states, positions };
        self.all.insert(id, resource);
        id
    }

    /// Marks the resources of a call as used, until [`remove_users`](Self::remove_users).
    pub fn add_users(&mut self, call: &Call) {
        for id in call.resources() {
            if let Some(resource) = self.all.get_mut(&id) {
                resource.users += 1;
            }
        }
    }

    pub fn remove_users(&mut self, call: &Call) {
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

    /// Removes a resource if it is no longer used. While a worker creates it, it remains, because it is the worker's
    /// current task.
    fn remove_unused(&mut self, id: ResourceId) {
        let is_being_created = self.creating.iter().flatten().any(|creating| *creating == id);
        if is_being_created || !self.all.get(&id).is_some_and(Resource::is_unused) {
            return;
        }
        let Some(resource) = self.all.remove(&id) else { return };
        for (state, dropped) in resource.states.iter().zip(&mut self.dropped) {
            if *state == ResourceState::Created {
                dropped.push(id);
            }
        }
        self.remove_users(&resource.call);
    }

    pub fn take_dropped(&mut self, worker: usize) -> std::vec::Drain<'_, ResourceId> {
        self.dropped[worker].drain(..)
    }

    /// Returns whether all resources of a call are ready on a worker, or whether one is not created yet or has failed.
    pub fn availability(&self, worker: usize, call: &Call) -> Availability {
        for id in call.resources() {
            match self.all.get(&id).map(|resource| &resource.states[worker]) {
                Some(ResourceState::Created) => {}
                Some(ResourceState::Missing(_) | ResourceState::Creating(_)) => return Availability::NotYet,
                Some(ResourceState::Failed(failure)) => {
                    let text = format!("the argument {id} could not be created: {failure}");
                    // FT-5: a failure is described once, however long the chain of resources is.
                    let failure = match failure.kind {
                        FailureKind::Resource => failure.clone(),
                        _ => Failure::new(FailureKind::Resource, text),
                    };
                    return Availability::Failed(Failure { location: None, ..failure });
                }
                None => {
                    return Availability::Failed(Failure::new(
                        FailureKind::Resource,
                        format!("there is no {id}"),
                    ));
                }
            }
        }
        Availability::Ready
    }

    /// Returns whether a worker can create a resource now. The first worker to create it must be idle, because others
    /// may wait for that worker.
    fn is_next(&self, worker: usize, is_idle: bool, resource: &Resource) -> bool {
        let is_free = match resource.creator {
            Creator::Done => true,
            Creator::None => is_idle,
            Creator::Worker(_) => false,
        };
        let is_missing = matches!(resource.states[worker], ResourceState::Missing(_));
        is_free
            && is_missing
            && !resource.is_unused()
            && self.availability(worker, &resource.call) != Availability::NotYet
    }

    pub fn has_dropped(&self, worker: usize) -> bool {
        !self.dropped[worker].is_empty()
    }

    /// Returns whether there is a resource that a worker can create.
    pub fn has_next(&self, worker: usize, is_idle: bool) -> bool {
        self.all.values().any(|resource| self.is_next(worker, is_idle, resource))
    }

    /// Assigns to a worker the next resource that it can create, and marks the resource as being created; `None` if
    /// there is none. Resources whose arguments have failed are marked as failed. `is_idle` is whether the worker is
    /// idle, as the first worker to create a resource must be.
    pub fn take(&mut self, worker: usize, is_idle: bool) -> Option<Work> {
        loop {
            let next = self.all.iter().find(|(_, resource)| self.is_next(worker, is_idle, resource));
            let (id, uses) = next.map(|(id, resource)| (*id, self.availability(worker, &resource.call)))?;
            let resource = self.all.get_mut(&id)?;
            if let Availability::Failed(failure) = uses {
                resource.states[worker] = ResourceState::Failed(failure);
                continue;
            }
            let creates_variables = resource.creator != Creator::Done;
            if creates_variables {
                resource.creator = Creator::Worker(worker);
            }
            if let ResourceState::Missing(tries) = resource.states[worker] {
                resource.states[worker] = ResourceState::Creating(tries);
            }
            self.creating[worker].push_back(id);
            let (call, position) = (resource.call.clone(), resource.positions[worker].clone());
            return Some(Work::Create { resource: id, call, creates_variables, position });
        }
    }

    /// Records that a worker has created a resource, or has failed to. If a parameter server did not answer, creation
    /// is retried a limited number of times.
    pub fn record_created(&mut self, worker: usize, id: ResourceId, result: Result<(), Failure>) {
        let Some(resource) = self.all.get_mut(&id) else { return };
        let ResourceState::Creating(tries) = resource.states[worker] else { return };
        let is_made = result.is_ok();
        resource.states[worker] = match result {
            Ok(()) => ResourceState::Created,
            Err(failure) if failure.kind == FailureKind::Server && tries + 1 < MAX_ATTEMPTS => {
                ResourceState::Missing(tries + 1)
            }
            Err(failure) => ResourceState::Failed(failure),
        };
        if resource.creator == Creator::Worker(worker) {
            resource.creator = if is_made { Creator::Done } else { Creator::None };
        }
        self.creating[worker].retain(|creating| *creating != id);
        self.remove_unused(id);
    }

    /// Returns the first resource that a worker is creating; `None` if there is none.
    pub fn creating(&self, worker: usize) -> Option<(ResourceId, &Call)> {
        let id = *self.creating[worker].front()?;
        Some((id, &self.all.get(&id)?.call))
    }

    /// Records that a resource cannot be created on a worker.
    pub fn fail(&mut self, worker: usize, id: ResourceId, failure: Failure) {
        if let Some(resource) = self.all.get_mut(&id) {
            resource.states[worker] = ResourceState::Failed(failure);
        }
    }

    /// Records the new position of a resource on a worker after a closure has ended.
    pub fn record_position(&mut self, worker: usize, id: ResourceId, position: Bytes) {
        if let Some(resource) = self.all.get_mut(&id) {
            resource.positions[worker] = Some(position);
        }
    }

    /// Records that a worker has lost all its resources. If `keeps_failed` is `true`, resources that the worker has
    /// failed to create stay failed. This prevents two resources that both exceed their time limits from causing each
    /// other to be retried forever.
    pub fn remove_worker(&mut self, worker: usize, keeps_failed: bool) {
        self.dropped[worker].clear();
        for resource in self.all.values_mut() {
            if !keeps_failed || !matches!(resource.states[worker], ResourceState::Failed(_)) {
                resource.states[worker] = ResourceState::Missing(0);
            }
            if resource.creator == Creator::Worker(worker) {
                resource.creator = Creator::None;
            }
        }
        std::mem::take(&mut self.creating[worker]).into_iter().for_each(|id| self.remove_unused(id));
    }

    /// Returns the resources that a worker still has to create.
    pub fn missing(&self, worker: usize) -> Vec<ResourceId> {
        let is_missing = |resource: &Resource| {
            matches!(resource.states[worker], ResourceState::Missing(_) | ResourceState::Creating(_))
        };
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
