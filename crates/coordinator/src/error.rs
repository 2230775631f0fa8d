//! The errors of a coordinator.

use crate::call::ResourceId;
use crate::failure::Failure;
use std::time::Duration;

/// An error of a coordinator.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A closure has failed: the first one since the last such error. All other closures that had not ended
    /// were cancelled.
    #[error("{0}")]
    Failed(Failure),
    /// Workers cannot work for this coordinator, and the others do not begin without them.
    #[error("{operation}: {} of {workers} workers cannot work ({}); start them, and see their own errors", missing.len(), list(missing))]
    NotConnected {
        /// The operation that failed.
        operation: &'static str,
        /// The number of workers.
        workers: usize,
        /// The missing workers, and the reasons.
        missing: Vec<(String, String)>,
    },
    /// No worker was connected for longer than the timeout.
    #[error(
        "{operation}: no worker has been there for {:.1} s, and {waiting} closures wait ({}); start workers: the closures are kept for them",
        waited.as_secs_f64(), list(missing)
    )]
    NoWorkers {
        /// The operation that failed.
        operation: &'static str,
        /// The time without a worker.
        waited: Duration,
        /// The number of closures that have not ended.
        waiting: usize,
        /// The missing workers, and the reasons.
        missing: Vec<(String, String)>,
    },
    /// The operation has timed out.
    #[error("{operation}: not within {:.1} s: {}; wait longer, or see what these do", timeout.as_secs_f64(), now.join("; "))]
    Late {
        /// The operation that failed.
        operation: &'static str,
        /// The timeout.
        timeout: Duration,
        /// The current task of each worker.
        now: Vec<String>,
    },
    /// A resource among the arguments belongs to another coordinator, or was dropped.
    #[error("{operation}: the coordinator has no {resource}: make it anew by this coordinator")]
    NoResource {
        /// The operation that failed.
        operation: &'static str,
        /// The resource.
        resource: ResourceId,
    },
    /// The coordinator was dropped, with all closures that had not ended.
    #[error("{operation}: the coordinator has been dropped, and with it the closures that had not ended")]
    Dropped {
        /// The operation that failed.
        operation: &'static str,
    },
    /// The system cannot start a thread.
    #[error("the coordinator cannot start a thread: {reason}")]
    Thread {
        /// The cause.
        reason: String,
    },
}

fn list(missing: &[(String, String)]) -> String {
    let all: Vec<_> = missing.iter().map(|(worker, why)| format!("{worker}: {why}")).collect();
    all.join("; ")
}
