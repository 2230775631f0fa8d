//! The executor of one worker: its calls, and the values that it keeps for them.

use super::arguments::Lookup;
use super::batches::Stand;
use super::failure;
use super::kept::Kept;
use super::registry::{Given, Make, Registry};
use super::worker::{Calling, WorkerContext};
use crate::strategy::ParameterServerStrategy;
use bytes::Bytes;
use distribute_base::Error;
use distribute_base::internal::{lock, panicked};
use distribute_coordinator::{Call, CallContext, Executor, Failure, FailureKind, Origin, ResourceId};
use distribute_ps_client::RunningClosure;
use distribute_ps_client::internal::Makes;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// The values that one worker keeps, and the positions of its datasets that were last reported to the
/// coordinator.
#[derive(Default)]
struct Resources {
    kept: HashMap<ResourceId, Kept>,
    told: HashMap<ResourceId, Stand>,
}

/// The executor of one worker.
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

    /// Runs the body of a call in the context of the worker. A panic becomes a failure.
    fn perform<T>(
        &self,
        context: &CallContext,
        call: &Call,
        makes: Makes,
        body: impl FnOnce(&Given<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        context.cancellation().check()?;
        let worker =
            WorkerContext::of_call(self.worker, self.strategy.clone(), context.cancellation().clone());
        let given = Given { worker: &worker, arguments: &call.arguments, kept: self };
        let _calling = Calling::of(self.worker);
        let _making = self.strategy.servers().made_as(makes);
        let fail = |error: Error| failure::of(&error, &worker);
        // INV-59
        let changes = context.origin.map(|origin| self.strategy.servers().run_closure(changed_by(origin)));
        let changes = changes.transpose().map_err(fail)?;
        // Values that a worker keeps may be inconsistent after a panic. That is up to their types: a lock of
        // the standard library is poisoned.
        let result = match catch_unwind(AssertUnwindSafe(|| body(&given))) {
            Ok(result) => result?,
            Err(panic) => return Err(Failure::new(FailureKind::Panicked, panicked(&*panic).to_string())),
        };
        changes.map_or(Ok(()), RunningClosure::end).map_err(fail)?;
        Ok(result)
    }
}

impl Lookup for WorkerExecutor {
    fn kept(&self, id: ResourceId) -> Option<Kept> {
        lock(&self.resources).kept.get(&id).cloned()
    }
}

/// Converts the origin of a call to the one that servers use.
fn changed_by(origin: Origin) -> distribute_ps_tables::Origin {
    distribute_ps_tables::Origin { job: origin.job, closure: origin.closure.0, floor: origin.floor.0 }
}

fn makes(context: &CallContext) -> Makes {
    if context.makes_variables { Makes::Missing } else { Makes::None }
}

impl Executor for WorkerExecutor {
    fn call(&self, context: &CallContext, call: &Call) -> Result<Bytes, Failure> {
        let send = self.registry.sends(&call.function)?;
        // CC-3: one worker makes the variables of a resource; a closure runs on any worker, and may be retried.
        let makes = if context.makes_variables { Makes::Missing } else { Makes::Present };
        self.perform(context, call, makes, |given| send(given, self.largest_result))
    }

    fn make(
        &self,
        context: &CallContext,
        resource: ResourceId,
        call: &Call,
        position: Option<&Bytes>,
    ) -> Result<(), Failure> {
        let make = self.registry.makes(&call.function)?;
        let makes = match &make {
            // CC-11
            Make::Batches(_) => Makes::Refused,
            Make::Value(_) => makes(context),
        };
        let kept = self.perform(context, call, makes, |given| make.make(given, position))?;
        let mut resources = lock(&self.resources);
        match &kept.positioned {
            Some(positioned) => drop(resources.told.insert(resource, positioned.stand())),
            None => drop(resources.told.remove(&resource)),
        }
        let before = resources.kept.insert(resource, kept);
        drop(resources);
        // Its destructor may run code of the user, so the lock is released first.
        drop(before);
        Ok(())
    }

    fn positions(&self) -> Vec<(ResourceId, Bytes)> {
        let mut resources = lock(&self.resources);
        let Resources { kept, told } = &mut *resources;
        let mut moved = Vec::new();
        for (id, kept) in kept {
            let Some(stand) = kept.positioned.as_ref().map(|batches| batches.stand()) else { continue };
            if told.get(id) == Some(&stand) {
                continue;
            }
            // A few numbers can always be encoded.
            if let Ok(bytes) = stand.encode() {
                moved.push((*id, bytes));
                told.insert(*id, stand);
            }
        }
        moved.sort_unstable_by_key(|(id, _)| *id);
        moved
    }

    fn rewind(&self) {
        let Resources { kept, told } = &*lock(&self.resources);
        for (id, stand) in told {
            let Some(batches) = kept.get(id).and_then(|kept| kept.positioned.as_ref()) else { continue };
            // A dataset accepts a position that it has reported itself.
            if batches.stand() != *stand && batches.go_on(stand.clone()).is_err() {
                tracing::debug!("{id} has not gone back to where it was");
            }
        }
    }

    fn forget(&self, resource: ResourceId) {
        let mut resources = lock(&self.resources);
        resources.told.remove(&resource);
        let kept = resources.kept.remove(&resource);
        drop(resources);
        drop(kept);
    }
}
