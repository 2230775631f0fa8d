//! What goes wrong with a coordinator.

use crate::call::ResourceId;
use crate::failure::Failure;
use std::time::Duration;

/// Why a coordinator cannot do what it was asked for.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A closure failed: the first that did since the last such error. All others that had not ended were cancelled.
    #[error("{0}")]
    Failed(Failure),
    /// Workers do not work for this coordinator, and the others do not begin without them.
    #[error("{operation}: {} of {workers} workers cannot work ({}); start them, and see their own errors", missing.len(), list(missing))]
    NotConnected {
        /// What was asked for.
        operation: &'static str,
        /// How many workers there are.
        workers: usize,
        /// Which, and why.
        missing: Vec<(String, String)>,
    },
    /// There has been no worker for so long.
    #[error(
        "{operation}: no worker has been there for {:.1} s, and {waiting} closures wait ({}); start workers: the closures are kept for them",
        waited.as_secs_f64(), list(missing)
    )]
    NoWorkers {
        /// What was asked for.
        operation: &'static str,
        /// For how long.
        waited: Duration,
        /// How many closures have not ended.
        waiting: usize,
        /// Why each worker is not there.
        missing: Vec<(String, String)>,
    },
    /// It has not happened in time.
    #[error("{operation}: not within {:.1} s: {}; wait longer, or see what these do", timeout.as_secs_f64(), now.join("; "))]
    Late {
        /// What was asked for.
        operation: &'static str,
        /// How long it was waited for.
        timeout: Duration,
        /// What each worker does.
        now: Vec<String>,
    },
    /// A resource among the arguments belongs to another coordinator, or has been let go of.
    #[error("{operation}: the coordinator has no {resource}: make it anew by this coordinator")]
    NoResource {
        /// What was asked for.
        operation: &'static str,
        /// The resource.
        resource: ResourceId,
    },
    /// The coordinator was dropped, and with it what had not ended.
    #[error("{operation}: the coordinator has been dropped, and with it the closures that had not ended")]
    Dropped {
        /// What was asked for.
        operation: &'static str,
    },
    /// The system has no thread to spare.
    #[error("the coordinator cannot start a thread: {reason}")]
    Thread {
        /// Why.
        reason: String,
    },
}

fn list(missing: &[(String, String)]) -> String {
    let all: Vec<_> = missing.iter().map(|(worker, why)| format!("{worker}: {why}")).collect();
    all.join("; ")
}
