//! The folder of a server, and the intervals of writes.

use std::path::PathBuf;
use std::time::Duration;

/// The safety of an acknowledged change on disk. With each of these, nothing is lost when the process is
/// killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The change is on disk: nothing is lost at a power failure. Concurrent changes share one sync.
    Disk,
    /// The change is in the page cache, and is synced to disk within this time.
    Soon(Duration),
    /// The change is in the page cache, and the system decides when it is written to disk.
    System,
}

/// The persistence settings of a server.
///
/// ```
/// use distribute_ps_server::{Durability, ServerOptions};
/// use std::time::Duration;
///
/// let options = ServerOptions::new("/var/lib/training/ps-0")
///     .durability(Durability::Disk)
///     .snapshot_every(Duration::from_secs(300))
///     .snapshot_after(1 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    pub(crate) folder: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) every: Duration,
    pub(crate) after: u64,
    pub(crate) memory: Option<usize>,
}

impl ServerOptions {
    /// Creates settings with a folder of this server's own, which is created if it does not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let durability = Durability::Soon(Duration::from_secs(1));
        Self {
            folder: folder.into(),
            durability,
            every: Duration::from_secs(60),
            after: 256 << 20,
            memory: None,
        }
    }

    /// Sets the safety of an acknowledged change; by default it is on disk within a second.
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Sets the interval at which all tables are saved if they have changed; one minute by default.
    pub fn snapshot_every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// Sets the size of the log in bytes after which all tables are saved before the interval has passed;
    /// 256 MiB by default. The log must also be at least twice as large as the tables. A restarted server reads a
    /// log of up to this size.
    pub fn snapshot_after(self, bytes: u64) -> Self {
        Self { after: bytes.max(1), ..self }
    }

    /// Sets the maximum number of bytes of the tables, values and slots; by default three quarters of the
    /// memory of the machine or container. A request that would exceed it is refused, and changes nothing.
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: Some(bytes), ..self }
    }
}
