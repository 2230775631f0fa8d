//! [`Plan`]: the distribution of a dataset over the present workers.

use super::layout;
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_data::{Distribution, Layout};
use distribute_tensor::Nest;
use std::sync::{Arc, Mutex};

/// The distribution of a dataset over the workers of the present world, shared by all clones of the dataset.
pub(super) struct Plan<T>(Arc<Mutex<Distribution<T>>>);

impl<T: Nest> Plan<T> {
    pub(super) fn new(plan: Distribution<T>) -> Self {
        Self(Arc::new(Mutex::new(plan)))
    }

    /// Returns the plan for the present workers. It is another one after a rendezvous with more or fewer of
    /// them.
    ///
    /// # Errors
    /// - [`Error::Data`](distribute_base::Error::Data): the dataset cannot be distributed over them.
    pub(super) fn present(&self, strategy: &Strategy) -> Result<Distribution<T>> {
        let layout = layout(strategy);
        let mut plan = lock(&self.0);
        if plan.layout() != layout {
            *plan = plan.over(layout)?;
        }
        Ok(plan.clone())
    }

    /// Returns the latest plan, even if the workers have changed.
    pub(super) fn latest(&self) -> Distribution<T> {
        lock(&self.0).clone()
    }
}

impl Strategy {
    /// Returns an error for an elastic training if some allowed number of workers could not share the dataset,
    /// instead of failing when the number changes.
    pub(super) fn require_any_number<T: Nest>(&self, plan: Distribution<T>) -> Result<Distribution<T>> {
        for workers in self.extended().elastic().into_iter().flatten() {
            plan.over(Layout { workers, ..plan.layout() })?;
        }
        Ok(plan)
    }
}

impl<T> Clone for Plan<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
