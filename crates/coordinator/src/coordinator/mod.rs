//! [`Coordinator`]: schedules calls on workers.
//!
//! | module | contents |
//! |---|---|
//! | `options`, `status` | its settings, and its status |
//! | `hub` | the state behind one lock: decisions, results, waiting threads |
//! | `worker_thread` | the thread that serves one worker |
//! | `value` | a result that may arrive later |

mod hub;
mod options;
mod status;
mod value;
mod worker_thread;

pub use options::Options;
pub use status::{Status, WorkerStatus};

use crate::call::{Call, ClosureId, FunctionId, ResourceId};
use crate::dispatch::Refusal;
use crate::error::Error;
use crate::failure::Failure;
use crate::link::Connect;
use crate::message::Hello;
use bytes::Bytes;
use distribute_cluster::Deadline;
use distribute_cluster::deadline::Stopwatch;
use hub::{Hub, State};
use parking_lot::MutexGuard;
use std::fmt;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use value::Value;
use worker_thread::serve_worker;

/// A scheduler of calls on workers. One of the workers executes each call. If that worker disconnects, another one
/// executes it again.
///
/// Dropping the coordinator drops closures that have not ended; call [`join`](Self::join) first.
pub struct Coordinator {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    hub: Hub,
    names: Vec<String>,
    timeout: Duration,
    closure_timeout: Duration,
    cancel_timeout: Duration,
}

/// A handle to the result of a closure, which can be fetched any number of times.
#[derive(Clone)]
pub struct ResultHandle {
    closure: ClosureId,
    value: Arc<Value>,
    shared: Arc<Shared>,
}

impl Coordinator {
    /// Creates a coordinator of the given workers, and waits until all of them have answered.
    ///
    /// `functions` are the functions of the program, which must be the same on the workers. `settings` are sent to all
    /// workers. `job` identifies this start of the coordinator: workers switch to the coordinator with the greatest
    /// number.
    ///
    /// # Errors
    /// - [`Error::NotConnected`]: workers do not answer in time, or reject this coordinator.
    /// - [`Error::Thread`]: a thread cannot be started.
    pub fn new(
        workers: Vec<Box<dyn Connect>>,
        functions: Vec<FunctionId>,
        job: u64,
        settings: Bytes,
        options: Options,
    ) -> Result<Self, Error> {
        let names: Vec<_> = workers.iter().map(|worker| worker.name()).collect();
        let count = workers.len();
        let shared = Arc::new(Shared {
            hub: Hub::new(count, options.limits()),
            names,
            timeout: options.timeout,
            closure_timeout: options.closure_timeout,
            cancel_timeout: options.cancel_timeout,
        });
        let mut coordinator = Self { shared: shared.clone(), threads: Vec::new() };
        for (worker, connect) in workers.into_iter().enumerate() {
            let (functions, settings) = (functions.clone(), settings.clone());
            let hello = Hello { job, worker, workers: count, functions, settings };
            let shared = shared.clone();
            let thread = Builder::new().name(format!("distribute-to-worker-{worker}"));
            let thread = thread.spawn(move || serve_worker(&shared, worker, &*connect, &hello));
            coordinator.threads.push(thread.map_err(|error| Error::Thread { reason: error.to_string() })?);
        }
        shared.wait_for_workers(options.join_timeout)?;
        Ok(coordinator)
    }

    /// Queues a closure, and returns a handle to its result. Blocks while the queue is full, and while other threads
    /// wait in [`join`](Self::join).
    ///
    /// # Errors
    /// - [`Error::Failed`]: an earlier closure has failed, and its failure was not returned yet. The new closure is not
    ///   scheduled.
    /// - [`Error::NoWorkers`]: while this call blocked, no worker was connected for longer than the timeout.
    /// - [`Error::NoResource`]: an argument is not a resource of this coordinator.
    pub fn schedule(&self, call: Call) -> Result<ResultHandle, Error> {
        const OPERATION: &str = "schedule";
        let shared = &self.shared;
        let mut state = shared.hub.lock();
        loop {
            // CC-6
            if state.joining == 0 {
                match state.dispatch.schedule(call.clone()) {
                    Ok(closure) => {
                        let value = Arc::<Value>::default();
                        state.values.insert(closure, value.clone());
                        shared.hub.wake_one(&state);
                        return Ok(ResultHandle { closure, value, shared: shared.clone() });
                    }
                    Err(Refusal::NoResource(resource)) => {
                        return Err(Error::NoResource { operation: OPERATION, resource });
                    }
                    Err(Refusal::Failing) => {
                        state = shared.cancel_after_failure(state)?;
                        continue;
                    }
                    Err(Refusal::Full) => {}
                }
            }
            shared.check_workers(&state, OPERATION)?;
            shared.hub.wait(&mut state, check_interval());
        }
    }

    /// Creates a resource: a value that each worker creates by calling a function, and creates again if it is lost. The
    /// value is never sent. Calls use it as an [`Argument::Resource`](crate::Argument::Resource), and wait until their
    /// worker has created it.
    ///
    /// # Errors
    /// - [`Error::NoResource`]: an argument is not a resource of this coordinator.
    pub fn create(&self, call: Call) -> Result<ResourceId, Error> {
        let mut state = self.shared.hub.lock();
        let made = state.dispatch.create(call);
        self.shared.hub.publish_outcomes(&mut state);
        made.map_err(|refusal| match refusal {
            Refusal::NoResource(resource) => Error::NoResource { operation: "create", resource },
            Refusal::Full | Refusal::Failing => Error::Dropped { operation: "create" },
        })
    }

    /// Drops a resource once the closures and resources that use it have ended or were dropped.
    pub fn forget(&self, resource: ResourceId) {
        let mut state = self.shared.hub.lock();
        state.dispatch.forget(resource);
        self.shared.hub.publish_outcomes(&mut state);
    }

    /// Waits until all closures have ended.
    ///
    /// A closure that takes too long fails because of its own time limit ([`Options::closure_timeout`]).
    ///
    /// # Errors
    /// - [`Error::Failed`]: a closure has failed, and its failure was not returned yet. The other closures were
    ///   cancelled, and the coordinator can be used again.
    /// - [`Error::NoWorkers`]: no worker was connected for longer than the timeout.
    pub fn join(&self) -> Result<(), Error> {
        self.join_within("join", Duration::MAX)
    }

    /// Waits at most `timeout` until all closures have ended.
    ///
    /// # Errors
    /// - The errors of [`join`](Self::join).
    /// - [`Error::TimedOut`]: closures have not ended within `timeout`. They continue.
    pub fn join_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.join_within("join_timeout", timeout)
    }

    fn join_within(&self, operation: &'static str, timeout: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        let mut deadline = Deadline::after(timeout);
        let mut state = shared.hub.lock();
        state.joining += 1;
        let result = loop {
            if state.dispatch.has_failed() {
                match shared.cancel_after_failure(state) {
                    Ok(settled) => state = settled,
                    Err(error) => {
                        state = shared.hub.lock();
                        break Err(error);
                    }
                }
            }
            if state.dispatch.is_idle() {
                break Ok(());
            }
            if let Err(error) = shared.check_workers(&state, operation) {
                break Err(error);
            }
            let slice = deadline.look();
            if slice.is_zero() {
                break Err(Error::TimedOut { operation, timeout, tasks: shared.describe(&state) });
            }
            shared.hub.wait(&mut state, slice.min(check_interval()));
            deadline.look();
        };
        state.joining -= 1;
        shared.hub.wake_all();
        result
    }

    /// Returns whether all closures have ended. If a closure has failed, first waits until all others have ended.
    ///
    /// # Errors
    /// - [`Error::Failed`]: a closure has failed, and its failure was not returned yet, as in [`join`](Self::join).
    pub fn done(&self) -> Result<bool, Error> {
        let mut state = self.shared.hub.lock();
        if state.dispatch.has_failed() {
            state = self.shared.cancel_after_failure(state)?;
        }
        Ok(state.dispatch.is_idle())
    }

    /// Returns the current status of the coordinator and its workers.
    pub fn status(&self) -> Status {
        self.shared.status(&self.shared.hub.lock())
    }

    /// Returns the position of a resource on each worker after the closures that have ended, for example the position
    /// in a dataset. The position is `None` for a worker that has taken nothing from the resource. Returns `None` if
    /// the resource does not exist.
    pub fn positions(&self, resource: ResourceId) -> Option<Vec<Option<Bytes>>> {
        self.shared.hub.lock().dispatch.positions(resource).map(<[_]>::to_vec)
    }
}

/// Returns the maximum time to wait before checking the state again.
fn check_interval() -> Duration {
    Duration::from_millis(200)
}

impl Shared {
    /// Cancels all closures after one has failed, and waits until they have ended.
    ///
    /// # Errors
    /// - [`Error::Failed`]: the failure, unless another thread has returned it.
    /// - [`Error::Dropped`]: the coordinator was dropped.
    fn cancel_after_failure<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, Error> {
        // CC-7
        state.cancel();
        self.hub.publish_outcomes(&mut state);
        // Each running closure ends in time, or its worker is disconnected: see `worker_thread`.
        while state.dispatch.has_failed() {
            if let Some(failure) = state.dispatch.take_failure() {
                self.hub.wake_all();
                return Err(Error::Failed(failure));
            }
            if state.is_stopped {
                return Err(Error::Dropped { operation: "schedule" });
            }
            self.hub.wait(&mut state, check_interval());
        }
        // Another thread has returned the failure.
        Ok(state)
    }

    fn missing(&self, state: &State) -> Vec<(String, String)> {
        let all = self.names.iter().zip(&state.workers);
        all.filter_map(|(name, seen)| Some((name.clone(), seen.disconnect_reason.clone()?))).collect()
    }

    fn check_workers(&self, state: &State, operation: &'static str) -> Result<(), Error> {
        if state.is_stopped {
            return Err(Error::Dropped { operation });
        }
        let Some(waited) = state.time_without_workers().filter(|waited| *waited >= self.timeout) else {
            return Ok(());
        };
        let waiting = state.values.len();
        let (missing, refused) = (self.missing(state), state.refused());
        Err(Error::NoWorkers { operation, waited, waiting, missing, refused })
    }

    fn wait_for_workers(&self, timeout: Duration) -> Result<(), Error> {
        let waited = Stopwatch::start();
        let mut state = self.hub.lock();
        loop {
            let missing = self.missing(&state);
            if missing.is_empty() {
                return Ok(());
            }
            let refused = state.refused();
            if refused.is_some() || waited.elapsed() >= timeout {
                let (operation, workers) = ("ClusterCoordinator::new", self.names.len());
                return Err(Error::NotConnected { operation, workers, missing, refused });
            }
            self.hub.wait(&mut state, check_interval().min(timeout));
        }
    }

    fn status(&self, state: &State) -> Status {
        let worker = |(worker, name): (usize, &String)| {
            let running = state.dispatch.running(worker).map(|(task, call)| {
                let since = state.running(worker).map_or(Duration::ZERO, |(_, since)| since);
                (call.function.clone(), task, since)
            });
            WorkerStatus {
                name: name.clone(),
                disconnect_reason: state.workers[worker].disconnect_reason.clone(),
                losses: state.workers[worker].losses,
                running,
                closures: state.dispatch.assigned(worker).count(),
                missing: state.dispatch.missing(worker),
            }
        };
        let (run, overlaps) = state.dispatch.overlaps();
        Status {
            queued: state.dispatch.queued(),
            ended: state.ended,
            run,
            overlaps,
            workers: self.names.iter().enumerate().map(worker).collect(),
        }
    }

    /// Describes the current task of each worker, for errors.
    fn describe(&self, state: &State) -> Vec<String> {
        let Status { queued, workers, .. } = self.status(state);
        let mut all: Vec<_> = workers.iter().map(WorkerStatus::to_string).collect();
        if queued > 0 {
            all.push(format!("{queued} closures wait for a worker"));
        }
        all
    }
}

impl ResultHandle {
    /// Returns the sequence number of the closure.
    pub fn closure(&self) -> ClosureId {
        self.closure
    }

    /// Returns whether the closure has ended, successfully or not.
    pub fn is_ready(&self) -> bool {
        self.value.get().is_some()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// - [`Error::Failed`]: the closure has failed. Each call returns the same failure.
    /// - [`Error::NoWorkers`]: no worker was connected for longer than the timeout.
    /// - [`Error::Dropped`]: the coordinator was dropped.
    pub fn fetch(&self) -> Result<Bytes, Error> {
        self.fetch_within("fetch", Duration::MAX)
    }

    /// Waits at most `timeout` for the result.
    ///
    /// # Errors
    /// - The errors of [`fetch`](Self::fetch).
    /// - [`Error::TimedOut`]: the closure has not ended within `timeout`.
    pub fn fetch_timeout(&self, timeout: Duration) -> Result<Bytes, Error> {
        self.fetch_within("fetch_timeout", timeout)
    }

    fn fetch_within(&self, operation: &'static str, timeout: Duration) -> Result<Bytes, Error> {
        let mut deadline = Deadline::after(timeout.min(Duration::from_secs(u32::MAX.into())));
        loop {
            if let Some(result) = self.value.get() {
                return result.map_err(Error::Failed);
            }
            if !self.value.wait(&mut deadline) {
                let tasks = self.shared.describe(&self.shared.hub.lock());
                return Err(Error::TimedOut { operation, timeout, tasks });
            }
            if self.value.get().is_none() {
                self.shared.check_workers(&self.shared.hub.lock(), operation)?;
            }
        }
    }

    /// Returns the failure of the closure; `None` if it has not failed so far.
    pub fn failure(&self) -> Option<Failure> {
        self.value.get()?.err()
    }
}

impl fmt::Debug for ResultHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResultHandle({})", self.closure)
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("workers", &self.shared.names).finish()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // CC-15
        self.shared.hub.lock().is_stopped = true;
        self.shared.hub.wake_all();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}
