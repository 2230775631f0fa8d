//! The threads of a replica, which are a rayon pool of their own.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

/// The stack size in bytes of a replica's threads. candle's backward pass and the drop of a graph recurse once for each
/// operation of a chain. For 10,000 operations they use 11 MiB if candle is compiled without optimization. Unused pages
/// take no memory.
#[cfg(not(shuttle))]
pub(super) const STACK: usize = 64 << 20;

/// The maximum number of threads of a team. More are an error, because on some systems a thread beyond the system's
/// limit kills the process.
pub const MAX_THREADS: usize = 4096;

/// A function that is called on each thread of a replica when it starts, with the rank of the replica and the index of
/// the thread in the replica.
pub type Start = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// The settings of a replica's threads.
#[derive(Clone)]
pub(super) struct ThreadSettings {
    /// The number of threads of each replica.
    pub(super) threads: usize,
    #[cfg_attr(any(shuttle, miri), expect(dead_code, reason = "plain threads call no function"))]
    pub(super) start: Option<Start>,
}

impl ThreadSettings {
    pub(super) const PLAIN: Self = Self { threads: 1, start: None };
}

thread_local! {
    /// The number of threads of the replica that runs on this thread; 0 if it is unknown.
    static THREADS_OF_REPLICA: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of threads of the replica that runs on this thread, including this one. Returns `None` outside a
/// replica, and for a single replica on a thread of the program, which may use all cores of the machine.
pub fn threads_of_replica() -> Option<usize> {
    Some(THREADS_OF_REPLICA.get()).filter(|threads| *threads > 0)
}

/// Marks this thread as the only thread of its replica until the returned value is dropped. Has no effect if the
/// replica has more threads.
#[cfg(not(shuttle))]
pub(super) fn mark_single_threaded() -> impl Drop {
    struct RestoreThreads(usize);
    impl Drop for RestoreThreads {
        fn drop(&mut self) {
            THREADS_OF_REPLICA.set(self.0);
        }
    }
    let before = THREADS_OF_REPLICA.get();
    THREADS_OF_REPLICA.set(before.max(1));
    RestoreThreads(before)
}

/// Returns whether this thread belongs to a rayon pool of the program. While such a thread waits in rayon, it may run
/// other work of that pool. While it waits for replicas, that pool has one thread less.
#[cfg(not(shuttle))]
pub(super) fn serves_foreign_pool() -> bool {
    THREADS_OF_REPLICA.get() == 0 && rayon::current_thread_index().is_some()
}

/// Runs the rayon tasks that a replica has spawned and that have not run yet. If this thread is the only worker of its
/// pool, no other thread would run them.
pub(super) fn run_spawned_tasks() {
    #[cfg(not(any(shuttle, miri)))]
    while rayon::yield_local() == Some(rayon::Yield::Executed) {}
}

/// The threads of a replica, of which the first runs one closure. candle's parallel operations use the rayon pool of
/// the calling thread, which is the replica's own. So a replica never waits for threads of the program.
#[cfg(not(any(shuttle, miri)))]
pub(super) struct Worker {
    pool: Option<rayon::ThreadPool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

#[cfg(not(any(shuttle, miri)))]
impl Worker {
    /// Starts the threads of replica `rank`, and runs `body` on the first of them.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub(super) fn start(
        rank: usize,
        settings: &ThreadSettings,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let mut worker = Self { pool: None, threads: Vec::with_capacity(settings.threads) };
        let mut refused = None;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(settings.threads)
            .spawn_handler(|thread| {
                let (index, threads, start) = (thread.index(), settings.threads, settings.start.clone());
                let name = match index {
                    0 => format!("replica {rank}"),
                    _ => format!("replica {rank} thread {index}"),
                };
                let main = move || {
                    if index == 0 {
                        THREADS_OF_REPLICA.set(threads);
                    }
                    if let Some(start) = start {
                        start(rank, index);
                    }
                    thread.run();
                };
                let handle = std::thread::Builder::new().name(name).stack_size(STACK).spawn(main);
                match handle {
                    Ok(handle) => worker.threads.push(handle),
                    Err(error) => {
                        let kind = error.kind();
                        refused = Some(error);
                        return Err(kind.into());
                    }
                }
                Ok(())
            })
            .build();
        match (pool, refused) {
            (_, Some(error)) => return Err(error),
            (Err(error), None) => return Err(io::Error::other(error)),
            (Ok(pool), None) => worker.pool = Some(pool),
        }
        let body = std::sync::Mutex::new(Some(body));
        if let Some(pool) = &worker.pool {
            pool.spawn_broadcast(move |thread| {
                if thread.index() == 0
                    && let Some(body) = crate::sync::lock(&body).take()
                {
                    body();
                }
            });
        }
        Ok(worker)
    }
}

#[cfg(not(any(shuttle, miri)))]
impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.pool.take());
        let here = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != here) {
            // The owner has ended the closure, and an idle pool ends when dropped, so this join returns.
            let _ = thread.join();
        }
    }
}

/// A plain thread. It is used under shuttle, which does not schedule rayon's threads, and under Miri, where rayon's
/// threads would be too slow.
#[cfg(any(shuttle, miri))]
pub(super) struct Worker(Option<crate::sync::thread::JoinHandle<()>>);

#[cfg(any(shuttle, miri))]
impl Worker {
    pub(super) fn start(
        rank: usize,
        _: &ThreadSettings,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let builder = crate::sync::thread::Builder::new().name(format!("replica {rank}"));
        Ok(Self(Some(builder.spawn(body)?)))
    }
}

#[cfg(any(shuttle, miri))]
impl Drop for Worker {
    fn drop(&mut self) {
        self.0.take().map(|thread| thread.join());
    }
}
