//! Locking a mutex even after a panic. This is safe because the value guarded by a mutex in this project is consistent
//! after every statement.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, even if a thread has panicked while it held the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
