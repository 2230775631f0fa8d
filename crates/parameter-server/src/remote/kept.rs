//! A value that a worker keeps for the calls of a coordinator.

use super::batches::Positioned;
use std::any::{Any, type_name};
use std::sync::Arc;

/// A value that a worker keeps.
#[doc(hidden)]
#[derive(Clone)]
pub struct Kept {
    pub(super) value: Arc<dyn Any + Send + Sync>,
    /// The name of its type.
    pub(super) name: &'static str,
    /// The same value, if it is a dataset.
    pub(super) positioned: Option<Arc<dyn Positioned>>,
}

impl Kept {
    pub(super) fn new<T: Any + Send + Sync>(value: Arc<T>) -> Self {
        Self { value, name: type_name::<T>(), positioned: None }
    }

    pub(super) fn positioned<T: Any + Positioned>(value: Arc<T>) -> Self {
        Self { value: value.clone(), name: type_name::<T>(), positioned: Some(value) }
    }
}
