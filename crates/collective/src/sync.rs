//! The synchronisation primitives of `threads`: std's, or shuttle's under `--cfg shuttle`, which then explores the
//! interleavings (tests/shuttle.rs).

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use distribute_cluster::Deadline;
use std::sync::PoisonError;

/// Locks a mutex, even if it is poisoned: every critical section here leaves its state consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the threads that sleep until something under a mutex changes. Without sleepers, it makes no system call.
pub(crate) struct Signal {
    changed: Condvar,
    /// The number of sleeping threads, counted and read under the mutex.
    sleepers: AtomicU64,
}

impl Signal {
    pub(crate) fn new() -> Self {
        Self { changed: Condvar::new(), sleepers: AtomicU64::new(0) }
    }

    /// Sleeps until the signal, at most until the deadline. It may also wake spuriously, and does so to look at the clock.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, deadline: &mut Deadline) -> MutexGuard<'a, T> {
        let slice = deadline.look();
        // shuttle's waits never time out, so a passed deadline returns at once.
        #[cfg(shuttle)]
        if slice.is_zero() {
            return guard;
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let guard = self.changed.wait_timeout(guard, slice);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        deadline.look();
        guard.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all sleepers. The mutex has to be held, which `_guard` proves.
    pub(crate) fn notify<T>(&self, _guard: &mut T) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

/// Spins for a short while until `ready`. Waking a sleeping thread takes 50 µs, longer than many steps; but with more
/// threads than cores, long spins cost ten times what they gain.
pub(crate) fn linger(ready: impl Fn() -> bool) -> bool {
    // shuttle schedules at each operation, so spinning would only add equivalent interleavings.
    if cfg!(shuttle) {
        return ready();
    }
    for _ in 0..30 {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    for _ in 0..200 {
        if ready() {
            return true;
        }
        thread::yield_now();
    }
    false
}
