//! [`Settings`]: the options of connections.

use crate::wire::Limits;
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use std::time::Duration;

/// The options of connections between workers and of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The interval between heartbeats.
    pub heartbeat: Duration,
    /// The time after which a worker is disconnected if nothing was received from it.
    pub silence: Duration,
    /// The time without any transfer of bytes after which a closed transport stops waiting for the others to receive
    /// everything.
    pub shutdown_idle_timeout: Duration,
    /// The time after which a closed transport stops waiting even if bytes are still transferred.
    /// [`Transport::extend_shutdown_wait`](crate::Transport::extend_shutdown_wait) extends it.
    pub max_shutdown_wait: Duration,
    /// The maximum lengths of received messages.
    pub limits: Limits,
    /// Whether waiting threads yield their core, because more of them are on this machine than cores. With `None`, the
    /// mesh determines this itself.
    pub crowded: Option<bool>,
}

impl Default for Settings {
    /// Returns the default settings: a heartbeat every 500 ms and a silence of 2.7 s, so that a failed worker is
    /// disconnected within 3 s. A closed transport waits at most 5 s, or a minute while bytes are transferred. Heads
    /// are limited to 16 MiB and bodies to 64 GiB.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_millis(2700),
            shutdown_idle_timeout: Duration::from_secs(5),
            max_shutdown_wait: DEFAULT_TIMEOUT,
            limits: Limits::default(),
            crowded: None,
        }
    }
}
