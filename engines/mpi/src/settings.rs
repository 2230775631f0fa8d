//! How a process takes part.

use std::time::Duration;

/// How a process takes part, and for how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many replicas this worker has, which are threads: the same on all.
    pub replicas: usize,
    /// How long all processes take to come together.
    pub join: Duration,
    /// How often a sign of life is sent.
    pub heartbeat: Duration,
    /// A process that has sent nothing for so long is lost.
    pub silence: Duration,
    /// How long a process that has failed waits until the others have ended.
    pub farewell: Duration,
}

impl Default for Settings {
    /// One replica; a minute to come together; heartbeats each 500 ms, 3 s of silence, 5 s for the farewell.
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
