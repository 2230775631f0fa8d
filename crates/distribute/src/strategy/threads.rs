//! How replicas use the cores of the machine: threads of their own for matrix products, and cores of their own.

use crate::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// What the replicas of one strategy compute with, beside the thread that each of them runs on. See
/// [`MirroredBuilder::threads_per_replica`](super::MirroredBuilder::threads_per_replica) and
/// [`pinned`](super::MirroredBuilder::pinned).
#[derive(Debug)]
pub struct Threads {
    of_replicas: Vec<OfReplica>,
}

#[derive(Debug, Default)]
struct OfReplica {
    /// For matrix products; none where the replica's own thread makes them.
    pool: Option<Arc<ThreadPool>>,
    /// None where the system decides.
    cores: Option<Arc<[usize]>>,
}

impl Threads {
    /// So many threads for each replica, and if `pinned`, as many cores that its threads do not leave: the first ones of
    /// those that this process may use to replica 0, and round again where there are more threads than cores.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no thread, or for pinning where the system doesn't do it (it is for Linux);
    /// [`Error::Io`] if the system refuses a thread.
    pub fn new(replicas: usize, per_replica: usize, pinned: bool) -> Result<Self> {
        if per_replica == 0 {
            return Err(Error::invalid("threads_per_replica", "a replica has 1 thread at least"));
        }
        let cores = if pinned { affinity::allowed()? } else { Vec::new() };
        if pinned {
            // Asked for their number, rayon's global threads, which candle uses, are started: by a replica's thread, they
            // would all be on its cores for ever.
            rayon::current_num_threads();
        }
        let of_replica = |replica| {
            let cores = (!cores.is_empty()).then(|| deal(&cores, replica, per_replica));
            let pool = (per_replica > 1).then(|| pool(replica, per_replica, cores.clone())).transpose()?;
            Ok(OfReplica { pool, cores })
        };
        Ok(Self { of_replicas: (0..replicas).map(of_replica).collect::<Result<_>>()? })
    }

    /// Has this thread be a replica's, with its threads and cores, until the result is dropped.
    pub(super) fn enter(&self, replica: usize) -> Entered {
        let Some(of_replica) = self.of_replicas.get(replica) else { return Entered::default() };
        let before = of_replica.cores.as_ref().and_then(|cores| affinity::change(cores));
        if before.is_some() {
            FREE.set(before);
        }
        Entered { pool: Some(POOL.replace(of_replica.pool.clone())), before }
    }
}

/// The cores of a replica.
fn deal(cores: &[usize], replica: usize, per_replica: usize) -> Arc<[usize]> {
    (0..per_replica).map(|thread| cores[(replica * per_replica + thread) % cores.len()]).collect()
}

fn pool(replica: usize, threads: usize, cores: Option<Arc<[usize]>>) -> Result<Arc<ThreadPool>> {
    let start = move |thread: usize| {
        if let Some(core) = cores.as_ref().and_then(|cores| cores.get(thread)) {
            affinity::change(&[*core]);
        }
    };
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(move |thread| format!("replica {replica} product {thread}"))
        .start_handler(start)
        .build();
    pool.map(Arc::new).map_err(|error| Error::Io {
        operation: format!("starting {threads} threads of replica {replica}"),
        source: std::io::Error::other(error),
    })
}

thread_local! {
    /// The threads for the products of the replica that runs on this thread.
    static POOL: RefCell<Option<Arc<ThreadPool>>> = const { RefCell::new(None) };
    /// The cores that this thread had before it became a replica that is kept on its own.
    static FREE: Cell<Option<affinity::Cores>> = const { Cell::new(None) };
}

/// The threads for matrix products of the replica that runs on this thread, if it has its own.
pub(crate) fn product_threads() -> Option<Arc<ThreadPool>> {
    POOL.with_borrow(Clone::clone)
}

/// Leaves a replica's threads and cores when dropped.
#[derive(Default)]
pub(super) struct Entered {
    pool: Option<Option<Arc<ThreadPool>>>,
    before: Option<affinity::Cores>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            POOL.set(pool);
        }
        if let Some(before) = self.before.take() {
            FREE.set(None);
            affinity::restore(&before);
        }
    }
}

/// Gives a replica's thread the cores back that it had before, until the result is dropped: threads that it starts inherit
/// its cores, and those of a run inside of this one serve other strategies later.
pub(super) fn unpinned() -> Option<Unpinned> {
    let free = FREE.take()?;
    let pinned = affinity::swap(&free)?;
    Some(Unpinned { free, pinned })
}

/// Keeps the thread on its replica's cores again when dropped.
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

/// Which cores a thread may run on.
#[cfg(target_os = "linux")]
mod affinity {
    use crate::{Error, Result};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) type Cores = CpuSet;

    /// The cores that this thread may run on.
    pub(super) fn allowed() -> Result<Vec<usize>> {
        let source = |error| Error::Io {
            operation: "asking for this process's cores".into(),
            source: std::io::Error::from(error),
        };
        let set = sched_getaffinity(None).map_err(source)?;
        Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    }

    /// Keeps this thread on `cores`, and gives those it had; none where the system refuses, as it may when cores were
    /// taken away since: then the thread goes on where it is.
    pub(super) fn change(cores: &[usize]) -> Option<Cores> {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        swap(&set)
    }

    /// As [`change`].
    pub(super) fn swap(cores: &Cores) -> Option<Cores> {
        let before = sched_getaffinity(None).ok()?;
        match sched_setaffinity(None, cores) {
            Ok(()) => Some(before),
            Err(error) => {
                tracing::warn!("a thread cannot be kept on the cores {cores:?}: {error}");
                None
            }
        }
    }

    pub(super) fn restore(before: &Cores) {
        // The thread could run there before; if that has changed, it stays where it is.
        let _ = sched_setaffinity(None, before);
    }
}

#[cfg(not(target_os = "linux"))]
mod affinity {
    use crate::{Error, Result};

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
        assert_eq!(
            [0, 1, 2].map(|replica| deal(&[3, 5, 8, 9], replica, 2).to_vec()),
            [[3, 5], [8, 9], [3, 5]]
        );
        assert_eq!(*deal(&[0, 1], 0, 3), [0, 1, 0]);
    }

    #[test]
    fn a_thread_is_left_as_it_was() {
        let threads = Threads::new(2, 2, cfg!(target_os = "linux")).unwrap();
        #[cfg(target_os = "linux")]
        let before = affinity::allowed().unwrap();
        assert!(product_threads().is_none());
        {
            let _entered = threads.enter(1);
            assert_eq!(product_threads().map(|pool| pool.current_num_threads()), Some(2));
            #[cfg(target_os = "linux")]
            assert_eq!(affinity::allowed().unwrap().len(), 2.min(before.len()));
            // A run inside of a run: of a strategy with one replica.
            let _inner = Threads::new(1, 1, false).unwrap().enter(0);
            assert!(product_threads().is_none());
        }
        assert!(product_threads().is_none());
        #[cfg(target_os = "linux")]
        assert_eq!(affinity::allowed().unwrap(), before);
        assert!(Threads::new(1, 0, false).is_err());
    }
}
