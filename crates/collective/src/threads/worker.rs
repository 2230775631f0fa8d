//! The thread of a replica, with a rayon pool of its own.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

/// The stack size of a replica, on whatever thread it runs. candle's backward pass and the drop of a graph recurse once
/// for each operation of a chain: 10,000 of them take 11 MiB if candle is compiled without optimisation. Untouched
/// pages cost nothing.
pub(super) const STACK: usize = 64 << 20;

/// The most threads of a team. Some systems refuse a thread only after it has started, by ending the process, so we
/// refuse earlier.
pub const MOST_THREADS: usize = 4096;

/// Called on each thread of a replica when it starts, with the replica's rank and the index of the thread within it.
pub type Start = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// The settings of replicas' threads.
#[derive(Clone)]
pub(super) struct Kind {
    /// The number of threads of each replica.
    pub(super) threads: usize,
    pub(super) start: Option<Start>,
}

impl Kind {
    pub(super) const PLAIN: Self = Self { threads: 1, start: None };
}

thread_local! {
    /// The number of threads of the replica on this thread; 0 if unknown.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of threads of the replica that runs on this thread, including this one. `None` outside a
/// replica, and for a single replica on a thread of the program, which may use the whole machine.
pub fn own_threads() -> Option<usize> {
    Some(OWN.get()).filter(|threads| *threads > 0)
}

/// Marks this thread as the replica's only one until the result is dropped. A replica with more threads is unaffected.
#[cfg(not(shuttle))]
pub(super) fn alone() -> impl Drop {
    struct Before(usize);
    impl Drop for Before {
        fn drop(&mut self) {
            OWN.set(self.0);
        }
    }
    let before = OWN.get();
    OWN.set(before.max(1));
    Before(before)
}

/// Whether this thread serves a foreign rayon pool. While it waits in rayon, it picks up other work of that pool; while
/// it waits for replicas, that pool is one thread short.
#[cfg(not(shuttle))]
pub(super) fn serves_others() -> bool {
    OWN.get() == 0 && rayon::current_thread_index().is_some()
}

/// Runs the rayon tasks that a replica has spawned and that have not run, because this thread is its pool's only
/// worker.
pub(super) fn do_spawned() {
    #[cfg(not(any(shuttle, miri)))]
    while rayon::yield_local() == Some(rayon::Yield::Executed) {}
}

/// A thread that runs one closure. candle's parallel operations use the rayon pool of the calling thread. This thread
/// is a pool of its own, so a replica never waits for a thread of the program.
#[cfg(not(any(shuttle, miri)))]
pub(super) struct Worker {
    pool: Option<rayon::ThreadPool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

#[cfg(not(any(shuttle, miri)))]
impl Worker {
    /// Starts the threads of replica `rank`, and `body` on the first of them.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn start(rank: usize, kind: &Kind, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let mut worker = Self { pool: None, threads: Vec::with_capacity(kind.threads) };
        let mut refused = None;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(kind.threads)
            .spawn_handler(|thread| {
                let (index, threads, start) = (thread.index(), kind.threads, kind.start.clone());
                let name = match index {
                    0 => format!("replica {rank}"),
                    _ => format!("replica {rank} thread {index}"),
                };
                let main = move || {
                    if index == 0 {
                        OWN.set(threads);
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

/// A plain thread under shuttle, which does not schedule rayon's threads, and under Miri, where they would be too slow.
#[cfg(any(shuttle, miri))]
pub(super) struct Worker(Option<crate::sync::thread::JoinHandle<()>>);

#[cfg(any(shuttle, miri))]
impl Worker {
    pub(super) fn start(rank: usize, _: &Kind, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
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
