//! The options of a process.

use std::time::Duration;

/// The options and timeouts of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of replicas of this worker, which are threads. It is the same on all workers.
    pub replicas: usize,
    /// The time for all processes to join.
    pub join: Duration,
    /// The interval of heartbeats.
    pub heartbeat: Duration,
    /// The time without a message after which a process is disconnected.
    pub silence: Duration,
    /// The time for which a process that has failed waits until the others have exited.
    pub farewell: Duration,
}

impl Default for Settings {
    /// Returns one replica, a minute to join, heartbeats every 500 ms, 3 s of silence, and 5 s for the
    /// farewell.
    fn default() -> Self {
        Self {
            replicas: 1,
            join: Duration::from_secs(60),
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_secs(3),
            farewell: Duration::from_secs(5),
        }
    }
}
