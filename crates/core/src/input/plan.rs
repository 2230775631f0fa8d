//! [`CurrentPlan`]: the distribution of a dataset over the current workers.

use super::{layout, of_this_process};
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_data::{Distribution, Layout};
use distribute_tensor::Nest;
use std::sync::{Arc, Mutex};

/// The distribution of a dataset over the current workers, shared by all of the dataset's clones.
pub(super) struct CurrentPlan<T>(Arc<Mutex<Distribution<T>>>);

impl<T: Nest> CurrentPlan<T> {
    pub(super) fn new(plan: Distribution<T>) -> Self {
        Self(Arc::new(Mutex::new(plan)))
    }

    /// Returns the plan for the current workers. Makes a new plan if a rendezvous has changed their number.
    ///
    /// # Errors
    /// - [`Error::Data`](distribute_base::Error::Data): the dataset cannot be distributed over the current
    ///   workers.
    pub(super) fn current(&self, strategy: &Strategy) -> Result<Distribution<T>> {
        let world = strategy.world();
        let layout = layout(world);
        let mut plan = lock(&self.0);
        if plan.layout() != layout {
            *plan = plan.over(layout)?;
        }
        if world.logical_replicas().is_some() && plan.replicas_here() != world.local_replicas() {
            *plan = of_this_process(plan.clone(), world)?;
        }
        Ok(plan.clone())
    }

    /// Returns the latest plan, even if the workers have changed since.
    pub(super) fn latest(&self) -> Distribution<T> {
        lock(&self.0).clone()
    }
}

impl Strategy {
    /// Returns `plan`. In elastic training, returns an error if the dataset cannot be distributed over every permitted
    /// number of workers; training would otherwise fail later, when the number of workers changes.
    pub(super) fn require_any_world<T: Nest>(&self, plan: Distribution<T>) -> Result<Distribution<T>> {
        for workers in self.extended().elastic().into_iter().flatten() {
            if self.world().logical_replicas().is_some() {
                // The plan is the same for any number of workers, but a worker that is not alone has a part of it.
                let first = plan.layout().replicas.div_ceil(workers);
                plan.part_of(0..first)?;
            } else {
                plan.over(Layout { workers, ..plan.layout() })?;
            }
        }
        Ok(plan)
    }
}

impl<T> Clone for CurrentPlan<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
