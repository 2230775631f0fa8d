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
use std::time::Duration;

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

    /// Sleeps until the signal, at most until the deadline. It may also wake spuriously, and does so to look at the
    /// clock.
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

/// Waits a short while without sleeping, until `ready`. Waking a sleeping thread takes 50 µs, more than many steps.
///
/// If every member has a core, it spins: to yield would give the core to any other runnable thread, and with another
/// busy program each rendezvous would then take a slice of the scheduler's, some milliseconds. If there are more
/// members than cores, those that spin keep the others from working, so it yields: not for long, because with another
/// busy program each yield may last such a slice.
// Not inlined: .ci/instructions leaves it out by its name.
#[inline(never)]
pub(crate) fn linger(ready: impl Fn() -> bool) -> bool {
    // shuttle schedules at each operation, so spinning would only add equivalent interleavings.
    if cfg!(shuttle) {
        return ready();
    }
    if crowd::is_larger_than_cores() {
        return spin(30, &ready) || yielding(200, &ready);
    }
    let deadline = Deadline::after(LINGER);
    while !spin(50, &ready) {
        if deadline.has_passed() {
            return false;
        }
    }
    true
}

/// The time that it takes to wake a sleeping thread: whatever is ready later costs at most twice the minimum.
const LINGER: Duration = Duration::from_micros(50);

/// The longest time of yielding: a small part of a timeout, and much longer than it takes to wake a thread.
const YIELDING: Duration = Duration::from_millis(10);

/// The number of times that it yields between two looks at the clock.
const FEW: usize = 16;

#[inline(always)]
fn spin(times: usize, ready: impl Fn() -> bool) -> bool {
    for _ in 0..times {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

#[inline(always)]
fn yielding(times: usize, ready: impl Fn() -> bool) -> bool {
    let mut deadline = None;
    for time in 1..=times {
        if ready() {
            return true;
        }
        // Mostly it is ready before the clock is read.
        if time.is_multiple_of(FEW) && deadline.get_or_insert_with(|| Deadline::after(YIELDING)).has_passed()
        {
            return false;
        }
        thread::yield_now();
    }
    false
}

/// The number of members of teams that are at work in this process.
#[cfg_attr(shuttle, allow(dead_code))]
pub(crate) mod crowd {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static AT_WORK: AtomicUsize = AtomicUsize::new(0);

    /// A guard: this number of members is at work while it lives.
    pub(crate) struct AtWork(usize);

    pub(crate) fn at_work(members: usize) -> AtWork {
        AT_WORK.fetch_add(members, Ordering::Relaxed);
        AtWork(members)
    }

    impl Drop for AtWork {
        fn drop(&mut self) {
            AT_WORK.fetch_sub(self.0, Ordering::Relaxed);
        }
    }

    pub(super) fn is_larger_than_cores() -> bool {
        AT_WORK.load(Ordering::Relaxed) > cores()
    }

    pub(crate) fn cores() -> usize {
        static CORES: OnceLock<usize> = OnceLock::new();
        *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}
