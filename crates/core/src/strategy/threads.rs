//! The assignment of the machine's cores to replicas: several threads per replica, and pinning.

use distribute_base::{Error, Result};
use distribute_collective::threads::worker::Start;
use distribute_collective::threads::{MAX_THREADS, TeamPool};
use std::cell::Cell;
use std::sync::Arc;

/// The threads that the replicas of one strategy use for computation. See the methods `threads_per_replica` and
/// `pin_threads` of `MirroredStrategyBuilder`.
#[derive(Debug)]
pub struct Threads {
    teams: TeamPool,
}

impl Threads {
    /// Prepares `per_replica` threads for each of `replicas` replicas; they start with the first run. If `pinned` is
    /// `true`, each thread is pinned to a core. The cores that this process may use are assigned in order, beginning
    /// with the threads of replica 0. If there are more threads than cores, the assignment starts over at the first
    /// core.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `per_replica` is zero, there would be more threads than a process may have, or
    ///   `pinned` is set on a system other than Linux.
    /// - [`Error::Io`]: the system does not return the cores that this process may use.
    pub fn new(replicas: usize, per_replica: usize, pinned: bool) -> Result<Self> {
        if per_replica == 0 {
            return Err(Error::invalid("threads_per_replica", "a replica needs at least 1 thread"));
        }
        let threads = replicas.saturating_mul(per_replica);
        if threads > MAX_THREADS {
            let reason = format!("{threads} threads in total, but a process has at most {MAX_THREADS}");
            return Err(Error::invalid("threads_per_replica", reason));
        }
        let start = pinned.then(|| {
            // This starts rayon's global threads. If a replica's thread started them, they would inherit its
            // core.
            rayon::current_num_threads();
            let cores = affinity::allowed()?;
            let start: Start = Arc::new(move |replica, thread| {
                let core = core_of(&cores, replica * per_replica + thread);
                FREE.set(core.and_then(|core| affinity::change(&[core])));
            });
            Ok::<_, Error>(start)
        });
        Ok(Self { teams: TeamPool::new(per_replica, start.transpose()?) })
    }

    pub(super) fn teams(&self) -> &TeamPool {
        &self.teams
    }
}

/// Returns the core for the thread with index `thread` among the threads of all replicas; `None` if `cores` is empty.
fn core_of(cores: &[usize], thread: usize) -> Option<usize> {
    cores.get(thread % cores.len().max(1)).copied()
}

thread_local! {
    /// The cores that this thread could run on before it was pinned; `None` if it is not pinned.
    static FREE: Cell<Option<affinity::Cores>> = const { Cell::new(None) };
}

/// Unpins a replica's thread until the returned guard is dropped. Otherwise the threads that this thread starts for a
/// nested run would inherit its core, although other strategies use those threads later. Returns `None` if the thread
/// is not pinned or cannot be unpinned.
pub(super) fn unpinned() -> Option<Unpinned> {
    let free = FREE.take()?;
    let pinned = affinity::swap(&free);
    if pinned.is_none() {
        FREE.set(Some(free));
    }
    Some(Unpinned { free, pinned: pinned? })
}

/// A guard that pins the thread again when it is dropped.
pub(super) struct Unpinned {
    free: affinity::Cores,
    pinned: affinity::Cores,
}

impl Drop for Unpinned {
    fn drop(&mut self) {
        affinity::restore(&self.pinned);
        FREE.set(Some(self.free));
    }
}

/// Reads and sets the cores that a thread may run on.
#[cfg(target_os = "linux")]
mod affinity {
    use distribute_base::{Error, Result};
    use distribute_log::warn_or_stderr;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) type Cores = CpuSet;

    /// Returns the cores that this thread may run on.
    pub(super) fn allowed() -> Result<Vec<usize>> {
        let source = |error| Error::Io {
            operation: "asking for this process's cores".into(),
            source: std::io::Error::from(error),
        };
        let set = sched_getaffinity(None).map_err(source)?;
        Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    }

    /// Pins this thread to `cores`, and returns the previous cores. If the system does not permit it, for example
    /// because the process has lost cores in the meantime, logs a warning and returns `None`.
    pub(super) fn change(cores: &[usize]) -> Option<Cores> {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        swap(&set)
    }

    /// Acts like [`change`], but takes a [`CpuSet`].
    pub(super) fn swap(cores: &Cores) -> Option<Cores> {
        let before = sched_getaffinity(None).ok()?;
        match sched_setaffinity(None, cores) {
            Ok(()) => Some(before),
            Err(error) => {
                warn_or_stderr(|| tracing::warn!("a thread cannot be kept on the cores {cores:?}: {error}"));
                None
            }
        }
    }

    pub(super) fn restore(before: &Cores) {
        // The thread could run there before. If the system now refuses, the thread stays as it is.
        let _ = sched_setaffinity(None, before);
    }
}

#[cfg(not(target_os = "linux"))]
mod affinity {
    use distribute_base::{Error, Result};

    #[derive(Clone, Copy)]
    pub(super) enum Cores {}

    pub(super) fn allowed() -> Result<Vec<usize>> {
        Err(Error::invalid("pin_threads", "threads are only pinned to cores on Linux; leave it out"))
    }

    pub(super) fn change(_: &[usize]) -> Option<Cores> {
        None
    }

    pub(super) fn swap(cores: &Cores) -> Option<Cores> {
        match *cores {}
    }

    pub(super) fn restore(before: &Cores) {
        match *before {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_dealt_in_turn_and_round_again() {
        let cores = [3, 5, 8, 9];
        assert_eq!([0, 1, 3, 4, 6].map(|thread| core_of(&cores, thread)), [3, 5, 9, 3, 8].map(Some));
        assert_eq!(core_of(&[], 1), None);
    }

    #[test]
    fn a_replica_without_a_thread_is_refused() {
        assert!(Threads::new(1, 0, false).is_err());
    }
}
