//! The synchronisation primitives that `threads` is made of: the standard ones, or shuttle's under `--cfg shuttle`,
//! which then explores the interleavings (tests/shuttle.rs).

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

/// Locks, also after a panic elsewhere: every critical section here leaves its state whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes those who sleep until something under a mutex changes. To wake nobody costs no system call.
pub(crate) struct Signal {
    changed: Condvar,
    /// Those who sleep: counted under the mutex, as it is read.
    sleepers: AtomicU64,
}

impl Signal {
    pub(crate) fn new() -> Self {
        Self { changed: Condvar::new(), sleepers: AtomicU64::new(0) }
    }

    /// Sleeps until the signal, until the deadline at most. It may wake without either, and does so to look at the clock.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, deadline: &mut Deadline) -> MutexGuard<'a, T> {
        let slice = deadline.look();
        // shuttle's waits never time out; one whose deadline has passed does.
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

    /// Wakes all who sleep. The mutex has to be held: `_guard` shows it.
    pub(crate) fn notify<T>(&self, _guard: &mut T) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

/// Waits a short while without sleeping, until `ready`. Waking a sleeping thread takes 50 µs, more than many steps;
/// long spins cost ten times as much as they gain once there are more threads than cores.
pub(crate) fn linger(ready: impl Fn() -> bool) -> bool {
    // shuttle schedules at each operation: lingering would only make more of the same interleavings.
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
