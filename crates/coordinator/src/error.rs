//! The errors of a coordinator.

use crate::call::ResourceId;
use crate::failure::{Failure, FailureKind};
use std::time::Duration;

/// An error of a coordinator.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A closure has failed. Methods of the coordinator return this error once for the first failure, after all other
    /// closures have ended or were cancelled. [`ResultHandle::fetch`](crate::ResultHandle::fetch) returns the failure
    /// of its own closure.
    #[error("{0}")]
    Failed(Failure),
    /// Some workers reject this coordinator or cannot be reached, and the coordinator does not start without them.
    #[error("{operation}: {} of {workers} workers cannot work ({}); start them, and check their logs", missing.len(), list(missing))]
    NotConnected {
        /// The operation that failed.
        operation: &'static str,
        /// The total number of workers.
        workers: usize,
        /// The names of the missing workers, and the reasons.
        missing: Vec<(String, String)>,
        /// The kind of failure with which a worker rejects this coordinator; `None` if none does.
        refused: Option<FailureKind>,
    },
    /// No worker was connected for longer than the timeout.
    #[error(
        "{operation}: no worker has been connected for {:.1} s, and {waiting} closures wait ({}); start \
         workers: the closures are kept for them",
        waited.as_secs_f64(), list(missing)
    )]
    NoWorkers {
        /// The operation that failed.
        operation: &'static str,
        /// The time for which no worker was connected.
        waited: Duration,
        /// The number of closures that have not ended.
        waiting: usize,
        /// The names of the missing workers, and the reasons.
        missing: Vec<(String, String)>,
        /// The kind of failure with which a worker rejects this coordinator; `None` if none does.
        refused: Option<FailureKind>,
    },
    /// Closures have not ended within the timeout of the operation.
    #[error("{operation}: timed out after {:.1} s: {}; raise the timeout, or check these workers", timeout.as_secs_f64(), tasks.join("; "))]
    TimedOut {
        /// The operation that timed out.
        operation: &'static str,
        /// The timeout that has passed.
        timeout: Duration,
        /// The current task of each worker.
        tasks: Vec<String>,
    },
    /// A resource among the arguments belongs to a different coordinator, or was dropped.
    #[error("{operation}: the coordinator has no {resource}: create it with this coordinator")]
    NoResource {
        /// The operation that failed.
        operation: &'static str,
        /// The sequence number of the resource.
        resource: ResourceId,
    },
    /// The coordinator was dropped, with all closures that had not ended.
    #[error("{operation}: the coordinator has been dropped, and with it the closures that had not ended")]
    Dropped {
        /// The operation that failed.
        operation: &'static str,
    },
    /// A thread could not be started.
    #[error("the coordinator cannot start a thread: {reason}")]
    Thread {
        /// The error of the operating system.
        reason: String,
    },
}

fn list(missing: &[(String, String)]) -> String {
    let all: Vec<_> = missing.iter().map(|(worker, why)| format!("{worker}: {why}")).collect();
    all.join("; ")
}
