//! Where and how often a server writes.

use std::path::PathBuf;
use std::time::Duration;

/// How safe a change is on the disk when it is acknowledged. Whatever it is, a process that is killed loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk: nothing is lost when the machine loses its power. Changes that come at once share one wait for it.
    Disk,
    /// It is with the system, which has it on the disk within this time.
    Soon(Duration),
    /// It is with the system.
    System,
}

/// Where a server keeps what it must not lose, and how.
///
/// ```
/// use distribute_ps::{Durability, ServerOptions};
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
    /// Keeps it in a folder of this server's own, which is made if it isn't there.
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

    /// How safe a change is when it is acknowledged; on the disk within a second by default.
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// How often all tables are saved, if they have changed; each minute by default.
    pub fn snapshot_every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// After how many bytes of the log all tables are saved, before the time for it has come; 256 MiB by default, and in any case
    /// twice of what the tables have. A server that comes back reads as much.
    pub fn snapshot_after(self, bytes: u64) -> Self {
        Self { after: bytes.max(1), ..self }
    }

    /// Sets the number of bytes that the tables may take, values and slots; three quarters of the memory of the machine or container by
    /// default. A request for which there is no room is refused, and changes nothing.
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: Some(bytes), ..self }
    }
}
