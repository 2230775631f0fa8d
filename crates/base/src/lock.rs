//! Locking, also after a panic: what a mutex here guards is whole between any two statements.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, also after a thread has panicked with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
