//! The events on which a job's supervisor waits while tasks run.

use crate::{End, Signal};
use std::time::Duration;

/// An event on which a job's supervisor waits.
pub(crate) enum Event {
    Ended {
        task: usize,
        end: End,
        after: Duration,
    },
    Drained {
        task: usize,
        last_error_line: Option<String>,
    },
    Signal(Signal),
    /// The queue of an output stream has become empty while the job is ending.
    Written,
}
