//! [`ServerOptions`]: the folder of a server, and how often the server writes to it.

use std::path::PathBuf;
use std::time::Duration;

/// The point at which a change is safe enough to be acknowledged. With every variant, a kill of the process loses
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The change is on disk, so that a power failure loses nothing. Concurrent changes share one sync.
    Disk,
    /// The change is in the page cache, and is synced to disk within the given time.
    Soon(Duration),
    /// The change is in the page cache, and the operating system decides when it is written to disk.
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
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    pub(crate) folder: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) every: Duration,
    pub(crate) after: u64,
    pub(crate) memory: Option<usize>,
}

impl ServerOptions {
    /// Creates settings with the folder of a server. Each server needs a separate folder, which is created if it does
    /// not exist.
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

    /// Sets the durability of acknowledged changes. By default, they are on disk within a second.
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Sets the interval at which all tables are saved if they have changed. The default is one minute.
    pub fn snapshot_every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// Sets the size of the log in bytes at which all tables are saved before the interval has passed; 256 MiB by
    /// default. The log must also be at least twice as large as the tables. A server that restarts therefore reads a
    /// log of up to about the greater of these sizes.
    pub fn snapshot_after(self, bytes: u64) -> Self {
        Self { after: bytes.max(1), ..self }
    }

    /// Sets the maximum size in bytes of all tables, including slots. The default is three quarters of the memory of
    /// the machine or container. A request that would exceed the limit is rejected and changes nothing.
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: Some(bytes), ..self }
    }
}
