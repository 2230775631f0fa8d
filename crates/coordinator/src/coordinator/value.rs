//! [`Value`]: the result of a closure, which may arrive later.

use crate::failure::Failure;
use bytes::Bytes;
use distribute_cluster::Deadline;
use parking_lot::{Condvar, Mutex};

/// A result that may arrive later.
#[derive(Debug, Default)]
pub(super) struct Value {
    result: Mutex<Option<Result<Bytes, Failure>>>,
    changed: Condvar,
}

impl Value {
    pub fn set(&self, result: Result<Bytes, Failure>) {
        self.result.lock().get_or_insert(result);
        self.changed.notify_all();
    }

    /// Returns the result, if it is available.
    pub fn get(&self) -> Option<Result<Bytes, Failure>> {
        self.result.lock().clone()
    }

    /// Waits for the result until the deadline should be checked again. Returns `false` if the deadline has passed.
    pub fn wait(&self, deadline: &mut Deadline) -> bool {
        let slice = deadline.look();
        if slice.is_zero() {
            return false;
        }
        let mut result = self.result.lock();
        if result.is_none() {
            self.changed.wait_for(&mut result, slice);
        }
        deadline.look();
        true
    }
}
