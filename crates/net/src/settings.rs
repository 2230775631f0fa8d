//! [`Settings`]: the options of connections.

use crate::wire::Limits;
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use std::time::Duration;

/// The options of a mesh's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The interval of heartbeats.
    pub heartbeat: Duration,
    /// The time without a message after which a worker is disconnected.
    pub silence: Duration,
    /// The time without movement of bytes in either direction after which the end stops waiting for the
    /// others to receive everything.
    pub farewell: Duration,
    /// The time after which the end stops waiting even if bytes still move.
    /// [`Transport::stay`](crate::Transport::stay) extends it.
    pub longest_farewell: Duration,
    /// The maximum lengths of received messages.
    pub limits: Limits,
    /// Whether threads that wait yield their core, because there are more of them on this machine than cores.
    /// `None` to count them.
    pub crowded: Option<bool>,
}

impl Default for Settings {
    /// Returns heartbeats every 500 ms and a silence of 2.7 s, so that a failed worker is disconnected within
    /// 3 s. The farewell lasts 5 s, or a minute while bytes move. Heads are limited to 16 MiB and bodies to
    /// 64 GiB.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_millis(2700),
            farewell: Duration::from_secs(5),
            longest_farewell: DEFAULT_TIMEOUT,
            limits: Limits::default(),
            crowded: None,
        }
    }
}
