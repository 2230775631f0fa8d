//! A guard that records replicas' activity while a monitor reads it.

use super::activity::{Activity, activity_of};
use super::layer::{WatchGuard, now};
use super::subscribe;

/// A guard that records the activity of replicas until it is dropped. Programs with their own `tracing` subscriber must
/// add [`layer`](super::layer()) to it.
pub struct Watch(#[allow(dead_code, reason = "its end is what counts")] WatchGuard);

impl Watch {
    /// Starts recording. If the program has no `tracing` subscriber, installs one that also logs to standard error.
    pub fn begin() -> Self {
        subscribe();
        Self(WatchGuard::new())
    }

    /// Returns the activity of a replica of the strategy with the given number; `None` if none was recorded.
    pub fn replica(&self, strategy: u64, replica: usize) -> Option<Activity> {
        activity_of((strategy, replica as u64), now())
    }
}
