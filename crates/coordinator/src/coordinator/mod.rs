//! The coordinator: the program that schedules calls.

mod follow;
mod hub;
mod options;
mod status;
mod value;

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
use follow::follow;
use hub::{Hub, State};
use parking_lot::MutexGuard;
use std::fmt;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use value::Value;

/// A scheduler of calls on workers. Each call is executed by one worker and, if that disconnects, retried on
/// another one.
///
/// Closures that have not ended are dropped with the coordinator; call [`join`](Self::join) first.
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
pub struct Remote {
    closure: ClosureId,
    value: Arc<Value>,
    shared: Arc<Shared>,
}

impl Coordinator {
    /// Creates a coordinator of these workers, after all of them have answered for the first time. `functions`
    /// are the functions of the program, which must be the same on the workers. `settings` are sent to all
    /// workers. `job` is the number of this start: workers switch to the coordinator with the greatest number.
    ///
    /// # Errors
    /// - [`Error::NotConnected`]: workers do not answer in time, or refuse this coordinator.
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
            let thread = thread.spawn(move || follow(&shared, worker, &*connect, &hello));
            coordinator.threads.push(thread.map_err(|error| Error::Thread { reason: error.to_string() })?);
        }
        shared.wait_for_workers(options.join_timeout)?;
        Ok(coordinator)
    }

    /// Queues a closure. Waits for room if the queue is full, and while other threads are in
    /// [`join`](Self::join).
    ///
    /// # Errors
    /// - [`Error::Failed`]: an earlier closure has failed, and its error was not returned yet. The new closure
    ///   is not scheduled.
    /// - [`Error::NoWorkers`]: the queue is full, and no worker is connected.
    /// - [`Error::NoResource`]: an argument is not a resource of this coordinator.
    pub fn schedule(&self, call: Call) -> Result<Remote, Error> {
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
                        return Ok(Remote { closure, value, shared: shared.clone() });
                    }
                    Err(Refusal::NoResource(resource)) => {
                        return Err(Error::NoResource { operation: OPERATION, resource });
                    }
                    Err(Refusal::Failing) => {
                        state = shared.settle(state)?;
                        continue;
                    }
                    Err(Refusal::Full) => {}
                }
            }
            shared.check_workers(&state, OPERATION)?;
            shared.hub.wait(&mut state, follow_up());
        }
    }

    /// Creates a resource: a value that each worker creates by calling a function, and recreates if it is lost.
    /// The value is not sent anywhere. Calls take it by [`Argument::Resource`](crate::Argument::Resource), and
    /// wait until their worker has created it.
    ///
    /// # Errors
    /// - [`Error::NoResource`]: an argument is not a resource of this coordinator.
    pub fn create(&self, call: Call) -> Result<ResourceId, Error> {
        let mut state = self.shared.hub.lock();
        let made = state.dispatch.create(call);
        self.shared.hub.settle_up(&mut state);
        made.map_err(|refusal| match refusal {
            Refusal::NoResource(resource) => Error::NoResource { operation: "create", resource },
            Refusal::Full | Refusal::Failing => Error::Dropped { operation: "create" },
        })
    }

    /// Drops a resource after the closures that use it have ended.
    pub fn forget(&self, resource: ResourceId) {
        let mut state = self.shared.hub.lock();
        state.dispatch.forget(resource);
        self.shared.hub.settle_up(&mut state);
    }

    /// Waits until all closures have ended.
    ///
    /// A closure that does not end fails after its own time limit ([`Options::closure_timeout`]).
    ///
    /// # Errors
    /// - [`Error::Failed`]: a closure has failed, and its error was not returned yet. The others were
    ///   cancelled, and the coordinator can be used again.
    /// - [`Error::NoWorkers`]: no worker was connected for longer than the timeout.
    pub fn join(&self) -> Result<(), Error> {
        self.join_within("join", Duration::MAX)
    }

    /// Waits until all closures have ended, for at most `timeout`.
    ///
    /// # Errors
    /// Returns the errors of [`join`](Self::join), and:
    /// - [`Error::Late`]: closures have not ended within `timeout`. They continue.
    pub fn join_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.join_within("join_timeout", timeout)
    }

    fn join_within(&self, operation: &'static str, timeout: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        let mut deadline = Deadline::after(timeout);
        shared.hub.lock().joining += 1;
        let mut state = shared.hub.lock();
        let result = loop {
            if state.dispatch.has_failed() {
                match shared.settle(state) {
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
                break Err(Error::Late { operation, timeout, now: shared.describe(&state) });
            }
            shared.hub.wait(&mut state, slice.min(follow_up()));
            deadline.look();
        };
        state.joining -= 1;
        shared.hub.wake_all();
        result
    }

    /// Returns whether all closures have ended.
    ///
    /// # Errors
    /// - [`Error::Failed`]: a closure has failed, and its error was not returned yet, as in
    ///   [`join`](Self::join).
    pub fn done(&self) -> Result<bool, Error> {
        let mut state = self.shared.hub.lock();
        if state.dispatch.has_failed() {
            state = self.shared.settle(state)?;
        }
        Ok(state.dispatch.is_idle())
    }

    /// Returns the current status of the coordinator and its workers.
    pub fn status(&self) -> Status {
        self.shared.status(&self.shared.hub.lock())
    }

    /// Returns the position of a resource on each worker, as of the closures that have ended. The position is
    /// `None` if nothing was taken from the resource.
    pub fn positions(&self, resource: ResourceId) -> Option<Vec<Option<Bytes>>> {
        self.shared.hub.lock().dispatch.positions(resource).map(<[_]>::to_vec)
    }
}

/// Returns the maximum time of a wait before the state is checked again.
fn follow_up() -> Duration {
    Duration::from_millis(200)
}

impl Shared {
    /// Cancels all closures after one has failed, waits for running closures, and returns the failure.
    fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, Error> {
        // CC-7
        state.cancel();
        self.hub.settle_up(&mut state);
        // Each running closure ends in time, or its worker is disconnected: see `follow`.
        while state.dispatch.has_failed() {
            if let Some(failure) = state.dispatch.settle() {
                self.hub.wake_all();
                return Err(Error::Failed(failure));
            }
            if state.is_stopped {
                return Err(Error::Dropped { operation: "schedule" });
            }
            self.hub.wait(&mut state, follow_up());
        }
        // Another thread has returned the failure.
        Ok(state)
    }

    fn missing(&self, state: &State) -> Vec<(String, String)> {
        let all = self.names.iter().zip(&state.workers);
        all.filter_map(|(name, seen)| Some((name.clone(), seen.away.clone()?))).collect()
    }

    fn check_workers(&self, state: &State, operation: &'static str) -> Result<(), Error> {
        if state.is_stopped {
            return Err(Error::Dropped { operation });
        }
        let Some(waited) = state.nobody().filter(|waited| *waited >= self.timeout) else { return Ok(()) };
        let waiting = state.values.len();
        Err(Error::NoWorkers { operation, waited, waiting, missing: self.missing(state) })
    }

    fn wait_for_workers(&self, timeout: Duration) -> Result<(), Error> {
        let waited = Stopwatch::start();
        let mut state = self.hub.lock();
        loop {
            let missing = self.missing(&state);
            if missing.is_empty() {
                return Ok(());
            }
            let is_refused = state.workers.iter().any(|seen| seen.is_refused);
            if is_refused || waited.elapsed() >= timeout {
                let workers = self.names.len();
                return Err(Error::NotConnected { operation: "ClusterCoordinator::new", workers, missing });
            }
            self.hub.wait(&mut state, follow_up().min(timeout));
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
                away: state.workers[worker].away.clone(),
                losses: state.workers[worker].losses,
                running,
                closures: state.dispatch.had(worker).count(),
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

    /// Describes the task of each worker.
    fn describe(&self, state: &State) -> Vec<String> {
        let Status { queued, workers, .. } = self.status(state);
        let mut all: Vec<_> = workers.iter().map(WorkerStatus::to_string).collect();
        if queued > 0 {
            all.push(format!("{queued} closures wait for a worker"));
        }
        all
    }
}

impl Remote {
    /// Returns the number of the closure.
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

    /// Waits for the result, for at most `timeout`.
    ///
    /// # Errors
    /// Returns the errors of [`fetch`](Self::fetch), and:
    /// - [`Error::Late`]: the closure has not ended within `timeout`.
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
                let now = self.shared.describe(&self.shared.hub.lock());
                return Err(Error::Late { operation, timeout, now });
            }
            if self.value.get().is_none() {
                self.shared.check_workers(&self.shared.hub.lock(), operation)?;
            }
        }
    }

    /// Returns the failure of the closure, if it has failed.
    pub fn failure(&self) -> Option<Failure> {
        self.value.get()?.err()
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.closure)
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
