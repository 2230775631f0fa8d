//! [`Session`]: the work for one coordinator on a worker, and the thread that executes it.

use super::queue::{Queue, Task};
use crate::call::{Call, ClosureId};
use crate::failure::{Failure, FailureKind};
use crate::message::{Batch, Done, Hello};
use crate::program::{CallContext, Cancellation, Executor};
use distribute_cluster::deadline::Stopwatch;
use distribute_log::warn_or_stderr;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

/// The maximum time for which the thread sleeps before it checks the queue again.
const SLEEP: Duration = Duration::from_secs(1);

/// The stack size in bytes, which is large because models recurse deeply.
const STACK: usize = 16 << 20;

/// The response to a request for results.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// The results that are available.
    Done(Vec<Done>),
    /// The session has ended.
    Over,
}

/// A callback that is called once with results.
type Collector = Box<dyn FnOnce(Collected) + Send>;

/// The work of a worker for one coordinator, from its first message until the next coordinator's.
pub(crate) struct Session {
    id: u64,
    worker: usize,
    executor: Arc<dyn Executor>,
    /// The maximum size of a result in bytes.
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: Queue,
    collector: Option<Collector>,
    is_over: bool,
}

impl Session {
    pub fn start(
        id: u64,
        hello: &Hello,
        executor: Arc<dyn Executor>,
        limit: usize,
    ) -> Result<Arc<Self>, Failure> {
        let state = Mutex::new(State { queue: Queue::new(hello.job), collector: None, is_over: false });
        let session =
            Arc::new(Self { id, worker: hello.worker, executor, limit, state, changed: Condvar::new() });
        let runs = session.clone();
        let name = format!("worker-{}", hello.worker);
        let thread = Builder::new().name(name).stack_size(STACK).spawn(move || runs.run());
        thread.map_err(|source| {
            let text = format!(
                "the system cannot start a thread for it: {source}; check the load of the \
                 machine"
            );
            Failure::new(FailureKind::Function, text)
        })?;
        Ok(session)
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Adds work, unless the session has ended.
    pub fn submit(&self, batch: Batch) {
        let mut state = self.state.lock();
        if !state.is_over {
            state.queue.add(batch);
            self.changed.notify_all();
            self.deliver(state);
        }
    }

    /// Calls `collector` as soon as there are results, or when the session ends. If an earlier collector is still
    /// waiting, that one is called without results.
    pub fn collect(&self, collector: Collector) {
        let mut state = self.state.lock();
        if state.is_over {
            drop(state);
            return collector(Collected::Over);
        }
        let before = state.collector.replace(collector);
        self.deliver(state);
        if let Some(before) = before {
            before(Collected::Done(Vec::new()));
        }
    }

    /// Ends the session. A running call is cancelled, and its result is not reported.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.queue.clear();
        let collector = state.collector.take();
        self.changed.notify_all();
        drop(state);
        if let Some(collector) = collector {
            collector(Collected::Over);
        }
    }

    fn deliver(&self, mut state: MutexGuard<'_, State>) {
        if !state.queue.has_done() {
            return;
        }
        let Some(collector) = state.collector.take() else { return };
        let done = state.queue.take_done(self.limit);
        drop(state);
        collector(Collected::Done(done));
    }

    fn run(&self) {
        while let Some((task, cancellation)) = self.next() {
            let done = self.execute(task, cancellation);
            let mut state = self.state.lock();
            if state.is_over {
                return;
            }
            state.queue.finish(done);
            self.deliver(state);
        }
    }

    /// Waits for the next task. Returns `None` after the session has ended.
    fn next(&self) -> Option<(Task, Cancellation)> {
        let mut state = self.state.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(next) = state.queue.next() {
                return Some(next);
            }
            self.changed.wait_for(&mut state, SLEEP);
        }
    }

    fn execute(&self, task: Task, cancellation: Cancellation) -> Option<Done> {
        let executor = &*self.executor;
        match task {
            Task::Call { origin, call } => {
                let clock = Stopwatch::start();
                let context = CallContext::new(Some(origin), false, cancellation);
                let closure = Some(origin.closure);
                let result = self.catch_panic(&call, closure, || executor.call(&context, &call));
                let result = result.and_then(|bytes| {
                    if bytes.len() <= self.limit {
                        return Ok(bytes);
                    }
                    let text = format!(
                        "its result has {} bytes, but the maximum is {}: store it in a variable or a file, \
                         and return a summary",
                        bytes.len(),
                        self.limit
                    );
                    Err(Failure::new(FailureKind::TooLarge, text).at(&call.function, closure, self.worker))
                });
                let micros = clock.elapsed().as_micros() as u64;
                let positions = match &result {
                    // The closure is retried, and takes the same elements again.
                    Err(failure) if failure.kind == FailureKind::Server => {
                        executor.rewind();
                        Vec::new()
                    }
                    _ => executor.positions(),
                };
                Some(Done::Called { closure: origin.closure, result, micros, positions })
            }
            Task::Create { resource, call, creates_variables, position } => {
                let context = CallContext::new(None, creates_variables, cancellation);
                let make = || executor.create(&context, resource, &call, position.as_ref());
                let result = self.catch_panic(&call, None, make);
                Some(Done::Created { resource, result })
            }
            Task::Forget(resource) => {
                executor.forget(resource);
                None
            }
        }
    }

    /// Runs a function of the user. A panic is logged and returned as a failure. Each failure gets the location of the
    /// call.
    fn catch_panic<T>(
        &self,
        call: &Call,
        closure: Option<ClosureId>,
        run: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let says = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let says = says.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = format!("it panicked: {}", says.as_deref().unwrap_or("see the worker's log"));
            Err(Failure::new(FailureKind::Panicked, text))
        });
        result.map_err(|failure| {
            let failure = failure.at(&call.function, closure, self.worker);
            if failure.kind == FailureKind::Panicked {
                warn_or_stderr(|| tracing::error!("{failure}; the worker continues"));
            }
            failure
        })
    }
}
