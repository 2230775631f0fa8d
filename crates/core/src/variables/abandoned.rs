//! Variables that differ between workers, because an optimizer was dropped within its local steps.

use super::variable::{Variable, WeakVariable};
use crate::strategy::Strategy;
use candle_core::TensorId;
use distribute_base::internal::lock;
use std::sync::Mutex;

/// The optimizers that were dropped before their outer step.
#[derive(Debug, Default)]
struct Abandoned(Mutex<Vec<AbandonedOptimizer>>);

#[derive(Debug)]
struct AbandonedOptimizer {
    /// The number of local steps since its last outer step.
    steps: u64,
    /// The variables that it trained and that have not been set on all workers since.
    variables: Vec<WeakVariable>,
}

impl AbandonedOptimizer {
    /// Returns `true` if any of the variables still differs between the workers.
    fn differs(&self) -> bool {
        self.variables.iter().any(WeakVariable::is_alive)
    }
}

impl Strategy {
    /// Records that an optimizer of `variables` was dropped `steps` local steps after its last outer step. Does nothing
    /// with a single worker, because no other worker has different weights.
    #[doc(hidden)]
    pub fn record_abandoned_steps(&self, steps: u64, variables: &[TensorId]) {
        if !self.world().is_multi_worker() {
            return;
        }
        let variables = variables.iter().filter_map(|id| Some(self.container(*id)?.downgrade())).collect();
        lock(&self.extension::<Abandoned>().0).push(AbandonedOptimizer { steps, variables });
    }

    /// Records that all workers have set this variable to the same value.
    pub(crate) fn record_equal(&self, variable: &Variable) {
        if self.local_steps().is_none() {
            return;
        }
        let is_other = |weak: &WeakVariable| weak.upgrade().is_some_and(|other| other.id() != variable.id());
        let abandoned = self.extension::<Abandoned>();
        let mut all = lock(&abandoned.0);
        all.iter_mut().for_each(|one| one.variables.retain(is_other));
        all.retain(AbandonedOptimizer::differs);
    }

    /// Records that all other workers have received this worker's state.
    pub(crate) fn forget_abandoned_steps(&self) {
        lock(&self.extension::<Abandoned>().0).clear();
    }

    /// Returns the number of local steps of optimizers that were dropped before their outer step. Only optimizers of
    /// which a variable still differs between the workers are counted.
    pub(crate) fn abandoned_steps(&self) -> u64 {
        let abandoned = self.extension::<Abandoned>();
        let all = lock(&abandoned.0);
        all.iter().filter(|one| one.differs()).map(|one| one.steps).sum()
    }
}
