//! The result of a closure, which comes later.

use crate::failure::Failure;
use bytes::Bytes;
use distribute_cluster::Deadline;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A result, once it is there.
#[derive(Debug, Default)]
pub(super) struct Value {
    result: Mutex<Option<Result<Bytes, Failure>>>,
    changed: Condvar,
}

impl Value {
    pub fn set(&self, result: Result<Bytes, Failure>) {
        self.lock().get_or_insert(result);
        self.changed.notify_all();
    }

    /// The result, if it is there; it can be had again.
    pub fn get(&self) -> Option<Result<Bytes, Failure>> {
        self.lock().clone()
    }

    /// Waits for the result until the next look at the clock. Says whether there is time left.
    pub fn wait(&self, deadline: &mut Deadline) -> bool {
        let slice = deadline.look();
        if slice.is_zero() {
            return false;
        }
        let result = self.lock();
        if result.is_none() {
            drop(self.changed.wait_timeout(result, slice));
        }
        deadline.look();
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<Bytes, Failure>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
