//! What the supervisor is told.

use crate::outcome::End;
use crate::signal::Signal;
use std::time::Duration;

/// What the supervisor is told.
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
    Asked(Signal),
    /// All that the job has said has been written.
    Written,
}
