//! [`Plan`]: how a dataset is parted over those who are there.

use super::layout;
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_data::{Distribution, Layout};
use distribute_tensor::Nest;
use std::sync::{Arc, Mutex};

/// How a dataset is parted over the workers of the present world, shared by all clones of it.
pub(super) struct Plan<T>(Arc<Mutex<Distribution<T>>>);

impl<T: Nest> Plan<T> {
    pub(super) fn new(plan: Distribution<T>) -> Self {
        Self(Arc::new(Mutex::new(plan)))
    }

    /// The plan for those who are there: another one when the workers have met again and are more or fewer.
    ///
    /// # Errors
    /// [`Error::Data`](crate::Error::Data) where the dataset cannot be parted over them.
    pub(super) fn present(&self, strategy: &Strategy) -> Result<Distribution<T>> {
        let layout = layout(strategy);
        let mut plan = lock(&self.0);
        if plan.layout() != layout {
            *plan = plan.over(layout)?;
        }
        Ok(plan.clone())
    }

    /// The latest one, whoever is there.
    pub(super) fn latest(&self) -> Distribution<T> {
        lock(&self.0).clone()
    }
}

impl Strategy {
    /// Where workers come and go, a dataset that could not be dealt over some number of them is refused now, and not when one comes.
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
