//! The thread of a replica, which is a rayon pool of its own.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

/// Stack of a replica, whatever thread it runs on. candle's backward, and the drop of a graph, recurse once for each operation
/// of a chain: 10,000 of them take 11 MiB where candle is compiled without optimisation. Untouched, it costs nothing.
pub(super) const STACK: usize = 64 << 20;

/// The threads that a team has at most. A system refuses more than it can have, but some only when a thread has started, by
/// ending the process.
pub const MOST_THREADS: usize = 4096;

/// What is called on each thread of a replica when it starts: with the replica's rank, and which of its threads it is.
pub type Start = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// What the threads of replicas are like.
#[derive(Clone)]
pub(super) struct Kind {
    /// How many each replica has.
    pub(super) threads: usize,
    pub(super) start: Option<Start>,
}

impl Kind {
    pub(super) const PLAIN: Self = Self { threads: 1, start: None };
}

thread_local! {
    /// How many threads the replica on this thread has to itself; 0 where that is not known.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// How many threads the replica that runs on this thread has to itself, this one included. None outside of a replica, and where
/// a replica is alone on a thread of the program's: it may use the whole machine.
pub fn own_threads() -> Option<usize> {
    Some(OWN.get()).filter(|threads| *threads > 0)
}

/// The replica on this thread has it alone, until the result is dropped. Where it has more, nothing changes.
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

/// Whether this thread serves a pool of somebody else's. While it waits in rayon, it takes up other work of that pool; while
/// it waits for replicas, it serves nobody.
#[cfg(not(shuttle))]
pub(super) fn serves_others() -> bool {
    OWN.get() == 0 && rayon::current_thread_index().is_some()
}

/// Does what a replica has spawned in rayon and nobody has done yet: its only worker is this thread.
pub(super) fn do_spawned() {
    #[cfg(not(any(shuttle, miri)))]
    while rayon::yield_local() == Some(rayon::Yield::Executed) {}
}

/// A thread that runs one closure. candle's parallel operations use the rayon pool of the thread that they are called on: as it
/// is a pool by itself, what a replica does never waits for a thread of the program's.
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
            // The owner has ended the closure, and a pool without work ends when it is dropped: so does this join.
            let _ = thread.join();
        }
    }
}

/// Under shuttle a plain thread: rayon's threads are none of those that it schedules. And under Miri, which would be busy with
/// them.
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
