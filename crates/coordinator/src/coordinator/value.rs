//! The result of a closure, which comes later.

use crate::failure::Failure;
use bytes::Bytes;
use distribute_cluster::Deadline;
use parking_lot::{Condvar, Mutex};

/// A result, once it is there.
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

    /// The result, if it is there; it can be had again.
    pub fn get(&self) -> Option<Result<Bytes, Failure>> {
        self.result.lock().clone()
    }

    /// Waits for the result until the next look at the clock. Says whether there is time left.
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
