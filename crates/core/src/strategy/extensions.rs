//! State that other modules store with a strategy.

use distribute_base::internal::lock;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A map with one value per requested type.
#[derive(Default)]
pub(super) struct Extensions(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Returns the value of type `T`. Creates it on the first call.
    pub(super) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let value = lock(&self.0).entry(TypeId::of::<T>()).or_insert_with(|| Arc::<T>::default()).clone();
        // The key is the type, so the downcast succeeds.
        value.downcast().unwrap_or_default()
    }
}
