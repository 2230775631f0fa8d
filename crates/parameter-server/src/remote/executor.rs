//! The executor of one worker, which runs calls and keeps values for them.

use super::arguments::Lookup;
use super::batches::DatasetPosition;
use super::failure;
use super::kept_value::KeptValue;
use super::registry::{CallArgs, Maker, Registry};
use super::worker::{CurrentWorker, WorkerContext};
use crate::strategy::ParameterServerStrategy;
use bytes::Bytes;
use distribute_base::Error;
use distribute_base::internal::{lock, panicked};
use distribute_coordinator::{Call, CallContext, Executor, Failure, FailureKind, Origin, ResourceId};
use distribute_ps_client::RunningClosure;
use distribute_ps_client::internal::CreationPolicy;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// The values that a worker keeps, and the positions of its datasets that were last reported to the
/// coordinator.
#[derive(Default)]
struct Resources {
    kept: HashMap<ResourceId, KeptValue>,
    reported: HashMap<ResourceId, DatasetPosition>,
}

/// The executor of one worker, which runs the coordinator's calls.
pub(super) struct WorkerExecutor {
    registry: Arc<Registry>,
    worker: usize,
    strategy: ParameterServerStrategy,
    resources: Mutex<Resources>,
    largest_result: usize,
}

impl WorkerExecutor {
    pub(super) fn new(
        registry: Arc<Registry>,
        worker: usize,
        strategy: ParameterServerStrategy,
        largest_result: usize,
    ) -> Self {
        Self { registry, worker, strategy, resources: Mutex::default(), largest_result }
    }

    /// Runs `body`, which performs a call, in the context of the worker. For a closure, then waits until the parameter
    /// servers have acknowledged its changes. Converts a panic to a failure.
    fn perform<T>(
        &self,
        context: &CallContext,
        call: &Call,
        policy: CreationPolicy,
        body: impl FnOnce(&CallArgs<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        context.cancellation().check()?;
        let worker =
            WorkerContext::for_call(self.worker, self.strategy.clone(), context.cancellation().clone());
        let args = CallArgs { worker: &worker, arguments: &call.arguments, resources: self };
        let _current = CurrentWorker::of(self.worker);
        let _policy = self.strategy.servers().with_creation_policy(policy);
        let fail = |error: Error| failure::from_error(&error, &worker);
        // INV-59
        let changes = context.origin.map(|origin| self.strategy.servers().run_closure(server_origin(origin)));
        let changes = changes.transpose().map_err(fail)?;
        // Values that a worker keeps may be inconsistent after a panic. Their types have to handle that: a lock
        // of the standard library is poisoned.
        let result = match catch_unwind(AssertUnwindSafe(|| body(&args))) {
            Ok(result) => result?,
            Err(panic) => return Err(Failure::new(FailureKind::Panicked, panicked(&*panic).to_string())),
        };
        changes.map_or(Ok(()), RunningClosure::end).map_err(fail)?;
        Ok(result)
    }
}

impl Lookup for WorkerExecutor {
    fn resource(&self, id: ResourceId) -> Option<KeptValue> {
        lock(&self.resources).kept.get(&id).cloned()
    }
}

/// Converts the origin of a call to the type that parameter servers use for it.
fn server_origin(origin: Origin) -> distribute_ps_tables::Origin {
    distribute_ps_tables::Origin { job: origin.job, closure: origin.closure.0, floor: origin.floor.0 }
}

fn creation_policy(context: &CallContext) -> CreationPolicy {
    if context.creates_variables { CreationPolicy::CreateMissing } else { CreationPolicy::Wait }
}

impl Executor for WorkerExecutor {
    fn call(&self, context: &CallContext, call: &Call) -> Result<Bytes, Failure> {
        let send = self.registry.encoder(&call.function)?;
        // CC-3: one worker makes the variables of a resource; a closure runs on any worker, and may be retried.
        let policy = if context.creates_variables {
            CreationPolicy::CreateMissing
        } else {
            CreationPolicy::RequireExisting
        };
        self.perform(context, call, policy, |args| send(args, self.largest_result))
    }

    fn create(
        &self,
        context: &CallContext,
        resource: ResourceId,
        call: &Call,
        position: Option<&Bytes>,
    ) -> Result<(), Failure> {
        let make = self.registry.maker(&call.function)?;
        let policy = match &make {
            // CC-11
            Maker::Batches(_) => CreationPolicy::Refuse,
            Maker::Value(_) => creation_policy(context),
        };
        let kept = self.perform(context, call, policy, |args| make.make(args, position))?;
        let mut resources = lock(&self.resources);
        match &kept.dataset {
            Some(dataset) => drop(resources.reported.insert(resource, dataset.dataset_position())),
            None => drop(resources.reported.remove(&resource)),
        }
        let before = resources.kept.insert(resource, kept);
        drop(resources);
        // Its destructor may run code of the user, so the lock is released first.
        drop(before);
        Ok(())
    }

    fn positions(&self) -> Vec<(ResourceId, Bytes)> {
        let mut resources = lock(&self.resources);
        let Resources { kept, reported } = &mut *resources;
        let mut moved = Vec::new();
        for (id, kept) in kept {
            let Some(at) = kept.dataset.as_ref().map(|batches| batches.dataset_position()) else { continue };
            if reported.get(id) == Some(&at) {
                continue;
            }
            // A few numbers can always be encoded.
            if let Ok(bytes) = at.encode() {
                moved.push((*id, bytes));
                reported.insert(*id, at);
            }
        }
        moved.sort_unstable_by_key(|(id, _)| *id);
        moved
    }

    fn rewind(&self) {
        let Resources { kept, reported } = &*lock(&self.resources);
        for (id, at) in reported {
            let Some(batches) = kept.get(id).and_then(|kept| kept.dataset.as_ref()) else { continue };
            // A dataset accepts a position that it has reported itself.
            if batches.dataset_position() != *at && batches.resume_at(at.clone()).is_err() {
                tracing::debug!("{id} was not rewound to its reported position");
            }
        }
    }

    fn forget(&self, resource: ResourceId) {
        let mut resources = lock(&self.resources);
        resources.reported.remove(&resource);
        let kept = resources.kept.remove(&resource);
        drop(resources);
        drop(kept);
    }
}
