//! The optimizers that are within their local steps, and the variables that they train.

use crate::strategy::Strategy;
use candle_core::TensorId;
use distribute_base::internal::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The variables of each optimizer that is within its local steps, by the optimizer's name.
#[derive(Debug, Default)]
struct WithinLocalSteps(Mutex<BTreeMap<String, Vec<TensorId>>>);

impl Strategy {
    /// Records that an optimizer of `variables` is within its local steps. Names of optimizers are unique.
    #[doc(hidden)]
    pub fn record_within_local_steps(&self, optimizer: &str, variables: &[TensorId]) {
        lock(&self.extension::<WithinLocalSteps>().0).insert(optimizer.to_owned(), variables.to_vec());
    }

    /// Records that an optimizer is at an outer step, or was dropped.
    #[doc(hidden)]
    pub fn record_no_local_steps(&self, optimizer: &str) {
        lock(&self.extension::<WithinLocalSteps>().0).remove(optimizer);
    }

    /// Returns an optimizer that is within its local steps and trains one of the variables, and the index of that
    /// variable. Returns `None` if there is no such optimizer.
    #[doc(hidden)]
    pub fn within_local_steps_of(&self, variables: &[TensorId]) -> Option<(String, usize)> {
        let within = self.extension::<WithinLocalSteps>();
        let all = lock(&within.0);
        all.iter().find_map(|(optimizer, trained)| {
            let shared = variables.iter().position(|variable| trained.contains(variable))?;
            Some((optimizer.clone(), shared))
        })
    }
}
