//! A value that a worker keeps for a coordinator's calls.

use super::batches::Resumable;
use std::any::{Any, type_name};
use std::sync::Arc;

/// A value that a worker keeps.
#[doc(hidden)]
#[derive(Clone)]
pub struct KeptValue {
    pub(super) value: Arc<dyn Any + Send + Sync>,
    /// The name of the value's type, for error messages.
    pub(super) name: &'static str,
    /// The same value as a dataset, if it is one.
    pub(super) dataset: Option<Arc<dyn Resumable>>,
}

impl KeptValue {
    pub(super) fn new<T: Any + Send + Sync>(value: Arc<T>) -> Self {
        Self { value, name: type_name::<T>(), dataset: None }
    }

    pub(super) fn dataset<T: Any + Resumable>(value: Arc<T>) -> Self {
        Self { value: value.clone(), name: type_name::<T>(), dataset: Some(value) }
    }
}
