//! The synchronization primitives of this crate. They come from the standard library or, under `--cfg shuttle`, from
//! shuttle, which explores the interleavings (tests/shuttle.rs).

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

/// Locks a mutex, even if it is poisoned, because every critical section of this crate leaves its state consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A condition variable that wakes threads when a state that is protected by a mutex changes. If no thread sleeps,
/// notifying makes no system call.
pub(crate) struct Signal {
    changed: Condvar,
    /// The number of sleeping threads. It is changed and read only while the mutex is held.
    sleepers: AtomicU64,
}

impl Signal {
    pub(crate) fn new() -> Self {
        Self { changed: Condvar::new(), sleepers: AtomicU64::new(0) }
    }

    /// Sleeps until the signal is sent, but at most until the deadline. May return early, for example to check the
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

    /// Wakes all sleeping threads. The mutex must be held, which `_guard` proves.
    pub(crate) fn notify<T>(&self, _guard: &mut T) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

/// Waits for a short time without sleeping until `ready` returns `true`, and returns whether it did. Waking a sleeping
/// thread takes 50 µs, longer than many steps.
///
/// If every member has a core, this spins. Yielding would give the core to any other runnable thread. Next to another
/// busy program, each rendezvous would then take a time slice of the scheduler, which is several milliseconds. If there
/// are more members than cores, spinning would keep the others from working, so this yields, but only for a short time.
// Not inlined: .ci/instructions leaves it out by its name.
#[inline(never)]
pub(crate) fn linger(ready: impl Fn() -> bool) -> bool {
    // shuttle schedules at each operation, so spinning would only add equivalent interleavings.
    if cfg!(shuttle) {
        return ready();
    }
    if active_members::exceed_cores() {
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

/// The maximum time to spin, which is about the time for waking a sleeping thread. A wait therefore takes at most twice
/// the minimum time.
const LINGER: Duration = Duration::from_micros(50);

/// The maximum time to yield. It is much longer than waking a thread takes, and short in comparison with a timeout.
const YIELDING: Duration = Duration::from_millis(10);

/// The number of yields between two checks of the clock.
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

/// A count of the team members that are running in this process.
#[cfg_attr(shuttle, allow(dead_code))]
pub(crate) mod active_members {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ACTIVE: AtomicUsize = AtomicUsize::new(0);

    /// A guard that counts members as running until it is dropped.
    pub(crate) struct ActiveMembers(usize);

    pub(crate) fn add_active_members(members: usize) -> ActiveMembers {
        ACTIVE.fetch_add(members, Ordering::Relaxed);
        ActiveMembers(members)
    }

    impl Drop for ActiveMembers {
        fn drop(&mut self) {
            ACTIVE.fetch_sub(self.0, Ordering::Relaxed);
        }
    }

    pub(super) fn exceed_cores() -> bool {
        ACTIVE.load(Ordering::Relaxed) > cores()
    }

    pub(crate) fn cores() -> usize {
        static CORES: OnceLock<usize> = OnceLock::new();
        *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}
