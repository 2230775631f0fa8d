//! The use of the machine's cores by replicas: several threads for each, and pinning.

use distribute_base::{Error, Result};
use distribute_collective::threads::worker::Start;
use distribute_collective::threads::{MOST_THREADS, Teams};
use std::cell::Cell;
use std::sync::Arc;

/// The threads that the replicas of one strategy compute with. See `MirroredBuilder::threads_per_replica` and
/// `pinned`.
#[derive(Debug)]
pub struct Threads {
    teams: Teams,
}

impl Threads {
    /// Creates `per_replica` threads for each replica. If `pinned`, each thread is pinned to a core: replica 0
    /// gets the first of the cores that this process may use, and so on, starting over if there are more
    /// threads than cores.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `per_replica` is zero, there are more threads than a process may have, or
    ///   `pinned` is set on a system other than Linux.
    pub fn new(replicas: usize, per_replica: usize, pinned: bool) -> Result<Self> {
        if per_replica == 0 {
            return Err(Error::invalid("threads_per_replica", "a replica has 1 thread at least"));
        }
        let threads = replicas.saturating_mul(per_replica);
        if threads > MOST_THREADS {
            let reason = format!("{threads} threads in all, of which a process has {MOST_THREADS} at most");
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
        Ok(Self { teams: Teams::new(per_replica, start.transpose()?) })
    }

    /// Returns the worker threads.
    pub(super) fn teams(&self) -> &Teams {
        &self.teams
    }
}

/// Returns the core of a thread, from its number among all threads of all replicas.
fn core_of(cores: &[usize], thread: usize) -> Option<usize> {
    cores.get(thread % cores.len().max(1)).copied()
}

thread_local! {
    /// The cores that this thread could use before it was pinned.
    static FREE: Cell<Option<affinity::Cores>> = const { Cell::new(None) };
}

/// Unpins a replica's thread until the result is dropped. Threads inherit the cores of the thread that starts
/// them, and threads started for a nested run later serve other strategies.
pub(super) fn unpinned() -> Option<Unpinned> {
    let free = FREE.take()?;
    let pinned = affinity::swap(&free)?;
    Some(Unpinned { free, pinned })
}

/// Pins the thread again when dropped.
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

/// The cores that a thread may run on.
#[cfg(target_os = "linux")]
mod affinity {
    use distribute_base::{Error, Result};
    use distribute_log::heard;
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

    /// Pins this thread to `cores`, and returns its previous ones. Returns `None` and leaves the thread
    /// unchanged if the system refuses, for example because cores have been taken away since.
    pub(super) fn change(cores: &[usize]) -> Option<Cores> {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        swap(&set)
    }

    /// Like [`change`], for the cores that it returned.
    pub(super) fn swap(cores: &Cores) -> Option<Cores> {
        let before = sched_getaffinity(None).ok()?;
        match sched_setaffinity(None, cores) {
            Ok(()) => Some(before),
            Err(error) => {
                heard(|| tracing::warn!("a thread cannot be kept on the cores {cores:?}: {error}"));
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
        Err(Error::invalid("pinned", "threads are pinned to cores on Linux only; leave it out"))
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
