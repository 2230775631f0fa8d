//! The registry of a strategy's variables.

use super::drift::DriftCheck;
use super::variable::{Variable, WeakVariable};
use crate::strategy::Strategy;
use candle_core::TensorId;
use distribute_base::internal::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// The variables of a strategy that have not been dropped.
#[derive(Default)]
struct Registry {
    /// The variables, keyed by the ids of the candle tensors of their copies.
    containers: Mutex<HashMap<TensorId, WeakVariable>>,
    /// The first variable with each name.
    names: Mutex<HashMap<String, WeakVariable>>,
}

impl Strategy {
    /// Registers a new variable by the candle tensors of its copies and by its name. If the variable must be equal on
    /// all workers, they compare it from now on.
    pub(crate) fn register(&self, variable: &Variable) {
        let registry = self.extension::<Registry>();
        let mut containers = lock(&registry.containers);
        // Forgets dropped variables, at an amortized cost.
        if containers.len() + variable.copy_count() > containers.capacity() {
            containers.retain(|_, variable| variable.upgrade().is_some());
        }
        containers.extend(variable.vars().map(|copy| (copy.id(), variable.downgrade())));
        drop(containers);
        let mut names = lock(&registry.names);
        if names.len() == names.capacity() {
            names.retain(|_, variable| variable.upgrade().is_some());
        }
        // A copy has the name of its original, and the name keeps referring to that.
        if names.get(variable.name()).is_none_or(|known| !known.is_alive()) {
            names.insert(variable.name().to_string(), variable.downgrade());
        }
        drop(names);
        if self.extended().group().is_some() && variable.is_mirrored() && variable.remote().is_none() {
            self.extension::<DriftCheck>().add(variable);
        }
    }

    /// Returns the variable that has the candle tensor with this id as a copy; `None` if there is none, or if it has
    /// been dropped.
    #[doc(hidden)]
    pub fn container(&self, id: TensorId) -> Option<Variable> {
        lock(&self.extension::<Registry>().containers).get(&id)?.upgrade()
    }

    /// Returns the variable that is registered under `name`; `None` if there is none, or if it has been dropped.
    pub(crate) fn variable_named(&self, name: &str) -> Option<Variable> {
        lock(&self.extension::<Registry>().names).get(name)?.upgrade()
    }
}
