//! A pool of threads that run jobs of one kind.

use crate::guard::panic_message;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// A pool of threads that run jobs. Results are returned in the order of the jobs, or of their completion.
///
/// No thread and no caller waits forever. A thread waits for jobs only until the pool drops their sender. The pool
/// waits only for threads that have a job, and a thread that panics reports this. The pool never joins a thread that
/// may still be running a user function.
pub(crate) struct WorkerPool<J, D> {
    operation: &'static str,
    workers: Vec<Worker<J>>,
    results: Results<D>,
    sent: usize,
    received: usize,
}

struct Worker<J> {
    jobs: SyncSender<J>,
    thread: JoinHandle<()>,
    /// The number of the thread's jobs whose results have not been received.
    waiting: usize,
}

/// The result of a thread's job; `None` if the thread has panicked.
struct Done<D> {
    worker: usize,
    result: Option<D>,
}

/// A guard in each thread. If the thread panics, dropping the guard reports this as the result of the job, so that no
/// caller waits forever.
struct Life<D> {
    worker: usize,
    results: Sender<Done<D>>,
}

impl<D> Drop for Life<D> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.results.send(Done { worker: self.worker, result: None });
        }
    }
}

/// The channels through which results are received.
enum Results<D> {
    /// A separate channel for each thread, so that results can be received in the order of the jobs.
    InTurn(Vec<Receiver<Done<D>>>),
    /// One channel for all threads, with results in the order of completion.
    AsTheyCome(Receiver<Done<D>>),
}

/// The maximum number of threads of one operation. More would only compete for cores.
const MAX_THREADS: usize = 1024;

/// Checks that the number of threads is at most [`MAX_THREADS`].
pub(crate) fn check_threads(operation: &'static str, threads: usize) -> Result<()> {
    let (parameter, expected) = ("the number of threads", "at most 1024");
    if threads > MAX_THREADS {
        Err(Error::Parameter { operation, parameter, found: threads.to_string(), expected })
    } else {
        Ok(())
    }
}

/// The maximum number of jobs that a thread has at a time: one that is running, and others that are queued so that the
/// thread does not have to wait.
pub(crate) const JOBS: usize = 4;

impl<J: Send + 'static, D: Send + 'static> WorkerPool<J, D> {
    /// Starts `threads` threads that call `work` with each job. If `ordered` is `true`, results are returned in the
    /// order of the jobs. `operation` is part of the names of the threads and of errors. Returns [`Error::Thread`] if a
    /// thread cannot be started.
    pub(crate) fn start(
        operation: &'static str,
        threads: usize,
        ordered: bool,
        work: impl Fn(J) -> D + Send + Sync + 'static,
    ) -> Result<Self> {
        let work = Arc::new(work);
        let mut workers = Vec::with_capacity(threads);
        let mut in_turn = Vec::new();
        let (all, as_they_come) = channel();
        for worker in 0..threads {
            let (jobs, receiver) = sync_channel::<J>(JOBS);
            let results = if ordered {
                let (sender, results) = channel();
                in_turn.push(results);
                sender
            } else {
                all.clone()
            };
            let work = work.clone();
            let thread = std::thread::Builder::new()
                .name(format!("data-{operation}"))
                .spawn(move || {
                    let life = Life { worker, results };
                    for job in receiver {
                        let _input = tracing::trace_span!("input").entered();
                        if life.results.send(Done { worker, result: Some(work(job)) }).is_err() {
                            break;
                        }
                    }
                })
                .map_err(|source| Error::Thread { operation, source })?;
            workers.push(Worker { jobs, thread, waiting: 0 });
        }
        let results = if ordered { Results::InTurn(in_turn) } else { Results::AsTheyCome(as_they_come) };
        Ok(Self { operation, workers, results, sent: 0, received: 0 })
    }

    /// Returns whether the thread for the next job can accept it.
    pub(crate) fn has_room(&mut self) -> bool {
        self.next_worker().is_some()
    }

    /// Returns whether the results of all jobs have been received.
    pub(crate) fn is_idle(&self) -> bool {
        self.received == self.sent
    }

    /// Returns the thread that gets the next job: with ordered results the one whose turn it is, otherwise the one
    /// with the fewest jobs. Returns `None` if its queue is full.
    fn next_worker(&mut self) -> Option<&mut Worker<J>> {
        match &self.results {
            Results::InTurn(_) => {
                let turn = self.sent % self.workers.len().max(1);
                self.workers.get_mut(turn)
            }
            Results::AsTheyCome(_) => self.workers.iter_mut().min_by_key(|worker| worker.waiting),
        }
        .filter(|worker| worker.waiting < JOBS)
    }

    /// Sends a job to a thread. [`has_room`](Self::has_room) must have returned `true`; otherwise the job is dropped.
    pub(crate) fn send(&mut self, job: J) {
        if let Some(worker) = self.next_worker() {
            // The death of a thread is noticed when its result is awaited.
            let _ = worker.jobs.send(job);
            worker.waiting += 1;
            self.sent += 1;
        }
    }

    /// Blocks until the next result is available, and returns it. Returns [`Error::ThreadDied`] if the thread with that
    /// result has panicked. Returns `None` if the results of all jobs have been received.
    pub(crate) fn receive(&mut self) -> Option<Result<D>> {
        if self.is_idle() {
            return None;
        }
        let turn = self.received % self.workers.len().max(1);
        let done = match &self.results {
            Results::InTurn(results) => results.get(turn)?.iter().next(),
            Results::AsTheyCome(results) => results.iter().next(),
        };
        self.received += 1;
        let (worker, result) = done.map_or((turn, None), |done| (done.worker, done.result));
        let Some(result) = result else { return Some(Err(self.died(worker))) };
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.waiting -= 1;
        }
        Some(Ok(result))
    }

    /// Removes a thread that has panicked, and returns its error. The thread has nothing left to do, so joining it does
    /// not block. The indices of other threads change, which does not matter because the pass is over.
    fn died(&mut self, worker: usize) -> Error {
        let panic = if worker < self.workers.len() {
            self.workers.swap_remove(worker).thread.join().err()
        } else {
            None
        };
        let message = panic.map_or("it ended early".into(), |panic| panic_message(panic.as_ref()));
        Error::ThreadDied { operation: self.operation, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;

    // INV-3
    #[test]
    fn a_thread_that_dies_is_an_error_where_its_result_is_waited_for() {
        watched(|| {
            let work = |job: usize| if job == 1 { panic!("a bug of ours") } else { job };
            for ordered in [true, false] {
                let mut pool = WorkerPool::start("test", 2, ordered, work).unwrap();
                (0..4).for_each(|job| pool.send(job));
                let first = pool.receive().unwrap();
                assert!(!ordered || first.is_ok());
                let error = first.and_then(|_| pool.receive().unwrap()).and_then(|_| pool.receive().unwrap());
                assert!(error.unwrap_err().to_string().contains("a bug of ours"));
            }
        });
    }

    #[test]
    fn results_come_in_the_order_of_jobs_and_only_of_those_given() {
        watched(|| {
            let mut pool = WorkerPool::start("test", 3, true, |job: usize| 2 * job).unwrap();
            let mut given = 0;
            while pool.has_room() {
                pool.send(given);
                given += 1;
            }
            assert_eq!(given, 3 * JOBS);
            let results: Vec<_> = std::iter::from_fn(|| pool.receive()).map(Result::unwrap).collect();
            assert_eq!(results, (0..given).map(|job| 2 * job).collect::<Vec<_>>());
            assert!(pool.is_idle());
        });
    }
}
