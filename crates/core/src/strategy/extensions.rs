//! State that modules above the handle keep with a strategy.

use distribute_base::internal::lock;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A value of each type that was asked for.
#[derive(Default)]
pub(super) struct Extensions(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// The value of this type.
    pub(super) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let value = lock(&self.0).entry(TypeId::of::<T>()).or_insert_with(|| Arc::<T>::default()).clone();
        // It is of this type, since that is the key.
        value.downcast().unwrap_or_default()
    }
}
