//! The number of replicas and the deadlines of a process.

use std::time::Duration;

/// The settings of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of replicas of this worker. Each replica is a thread. All workers must have the same number.
    pub replicas: usize,
    /// The maximum time until all processes have joined.
    pub join: Duration,
    /// The interval between heartbeats to the other processes.
    pub heartbeat: Duration,
    /// The time without a message after which a process is disconnected.
    pub silence: Duration,
    /// The maximum time for which a process that has failed waits until the others have exited, and for which any
    /// process waits for `MPI_Finalize`.
    pub shutdown_timeout: Duration,
}

impl Default for Settings {
    /// Returns the default settings: one replica, a minute to join, heartbeats every 500 ms, 3 s of silence, and a
    /// shutdown timeout of 5 s.
    fn default() -> Self {
        Self {
            replicas: 1,
            join: Duration::from_secs(60),
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_secs(3),
            shutdown_timeout: Duration::from_secs(5),
        }
    }
}
