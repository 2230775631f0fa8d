//! [`Worker`]: runs the closures of one coordinator at a time.
//!
//! | module | contents |
//! |---|---|
//! | `service` | the worker as a service of a server |
//! | `session` | the work for one coordinator, and the thread that executes it |
//! | `queue` | the order of the work and the unreported results: a pure state machine |
//! | `functions` | whether worker and coordinator have the same functions: a pure function |

mod functions;
pub mod queue;
mod service;
mod session;

pub use service::SERVICE;
pub(crate) use session::{Collected, Session};

use crate::failure::{Failure, FailureKind};
use crate::message::Hello;
use crate::program::Program;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// The maximum distance between the numbers of two jobs in sequence. Parameter servers, which assign the numbers, have
/// the same limit: 65,536 starts of 2^32 numbers each.
const MAX_JOB_DISTANCE: u64 = 1 << 48;

/// A worker, which runs the functions of a program for a coordinator in the same process or, as a
/// [`Service`](distribute_rpc::Service), in another one.
///
/// The worker runs functions for the latest coordinator, and drops the work and the resources of earlier ones. A
/// function that is running for an earlier coordinator is cancelled, and its result is ignored.
#[derive(Clone)]
pub struct Worker(Arc<Inner>);

struct Inner {
    program: Arc<dyn Program>,
    /// The maximum size of a result in bytes.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    job: u64,
    sessions: u64,
    session: Option<Arc<Session>>,
}

impl Worker {
    /// Creates a worker that runs the functions of `program`.
    pub fn new(program: Arc<dyn Program>) -> Self {
        Self(Arc::new(Inner { program, limit: 64 << 20, state: Mutex::default() }))
    }

    /// Begins a session for a coordinator, which replaces the previous one.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the coordinator is older than the current one or its program has different functions,
    /// if the program fails to start, or if another session has begun in the meantime.
    pub(crate) fn hello(&self, hello: &Hello) -> Result<Arc<Session>, Failure> {
        let inner = &*self.0;
        functions::compare(&inner.program.functions(), &hello.functions)?;
        let (id, before) = {
            let mut state = inner.state.lock();
            check_job(state.job, hello.job)?;
            state.job = hello.job;
            state.sessions += 1;
            (state.sessions, state.session.take())
        };
        if let Some(before) = before {
            before.end();
        }
        // Called without the lock, because it may wait for parameter servers.
        let executor = inner.program.start(hello.worker, hello.workers, &hello.settings)?;
        let session = Session::start(id, hello, executor, inner.limit)?;
        let mut state = inner.state.lock();
        if state.sessions != id {
            session.end();
            return Err(Failure::new(FailureKind::Cancelled, "the coordinator has reconnected"));
        }
        state.session = Some(session.clone());
        Ok(session)
    }

    /// Returns the session with the given id; `None` if another session has replaced it.
    pub(crate) fn session(&self, id: u64) -> Option<Arc<Session>> {
        self.0.state.lock().session.clone().filter(|session| session.id() == id)
    }
}

/// Checks that a worker may switch to a coordinator with job `job`.
///
/// # Errors
/// Returns a [`Failure`] if the job is older than `newest`, or if its number is so high that too few numbers would
/// remain for later jobs.
fn check_job(newest: u64, job: u64) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::new(FailureKind::Superseded, text));
    if job < newest {
        return refused("it works for a coordinator that was started later; stop this one".to_owned());
    }
    // INV-81
    if job - newest > MAX_JOB_DISTANCE {
        return refused(format!(
            "its coordinator's job has the number {job}, and {newest} was the last: a number so far ahead \
             is refused because no later coordinator could have a greater one; check which process calls as \
             chief 0"
        ));
    }
    Ok(())
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(session) = self.state.lock().session.take() {
            session.end();
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-81
    #[test]
    fn a_job_may_be_later_and_takes_no_number_from_those_after_it() {
        for (newest, job, is_taken) in [
            (0, 0, true),
            (7, 7, true),
            (7, 1 << 40, true),
            (7, 6, false),
            (0, u64::MAX, false),
            (1 << 40, u64::MAX, false),
            (u64::MAX - 9, u64::MAX, true),
        ] {
            let refused = check_job(newest, job).err().map(|failure| failure.kind);
            // No function has failed.
            assert_eq!(refused, (!is_taken).then_some(FailureKind::Superseded), "{newest} {job}");
        }
    }
}
