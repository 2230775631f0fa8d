//! [`Settings`]: how connections behave.

use crate::wire::Limits;
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use std::time::Duration;

/// How the connections of a mesh behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a sign of life is sent.
    pub heartbeat: Duration,
    /// A worker that has sent nothing for so long is lost.
    pub silence: Duration,
    /// The time after which the end no longer waits for the others to receive what was sent, if no bytes have moved in either direction.
    pub farewell: Duration,
    /// The time after which the end no longer waits even if bytes still move. [`Transport::stay`](crate::Transport::stay) makes it longer.
    pub longest_farewell: Duration,
    /// How long messages may be that come.
    pub limits: Limits,
    /// Whether threads that wait yield their core: there are more of them on this machine than cores. `None` to have it
    /// counted.
    pub crowded: Option<bool>,
}

impl Default for Settings {
    /// Heartbeats each 500 ms, 2.7 s of silence, so that whoever says nothing any more is given up within 3 s; 5 s for the
    /// farewell, and a minute while bytes move; heads of 16 MiB, bodies of 64 GiB.
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
