//! The reasons why one side rejects the other.

use distribute_cluster::Address;
use std::fmt;

/// The kind of reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The other side uses a different protocol, or has sent malformed bytes.
    Protocol,
    /// The versions of the protocol differ.
    Version,
    /// The two sides belong to different jobs.
    Job,
    /// The secrets differ, or only one side has a secret.
    Secret,
    /// The worker that has connected belongs to an earlier generation, and was replaced.
    Generation,
    /// The worker that was connected to belongs to an earlier generation. Its successor may still start.
    Replaced,
    /// The clusters or programs differ in data that must be the same on all workers.
    Cluster,
    /// No worker has this rank, another worker or task is at the address, or it is not this worker's turn to connect.
    Rank,
    /// A worker with that rank has already connected.
    Taken,
    /// The world is complete.
    Complete,
    /// The work of the world has ended.
    Ended,
    /// There is no room: too many connections have not identified themselves, or a server has too many callers. The
    /// other side may retry.
    Crowded,
    /// The handshake timed out.
    Late,
    /// The worker that was connected to cannot accept the other one yet. The other one may retry.
    Early,
    /// A call has reached a worker that accepts no calls, or a worker that joins a world has reached a task that only
    /// accepts calls.
    Purpose,
    /// The certificate of one side belongs to another task.
    Certificate,
    /// One side is a process of a different user, and the job has no secret.
    User,
    /// The worker that was connected to follows another one, whose position and address are in
    /// [`Refusal::leader`].
    Elsewhere,
    /// The worker that was connected to is still in a world, whose generation is in [`Refusal::generation`]. It joins
    /// the next one later.
    Busy,
    /// A reason that is unknown to this version.
    Other,
}

impl Reason {
    const ALL: [Reason; 19] = [
        Reason::Protocol,
        Reason::Version,
        Reason::Job,
        Reason::Secret,
        Reason::Generation,
        Reason::Replaced,
        Reason::Cluster,
        Reason::Rank,
        Reason::Taken,
        Reason::Complete,
        Reason::Crowded,
        Reason::Late,
        Reason::Purpose,
        Reason::Early,
        Reason::Ended,
        Reason::Certificate,
        Reason::User,
        Reason::Elsewhere,
        Reason::Busy,
    ];

    /// Returns whether only a worker of the job gives this reason, which knows the job's worlds.
    pub(crate) fn is_of_a_world(self) -> bool {
        matches!(
            self,
            Reason::Elsewhere
                | Reason::Busy
                | Reason::Ended
                | Reason::Generation
                | Reason::Taken
                | Reason::Complete
        )
    }

    /// Returns whether one process that gives this reason in an election is enough to end the rendezvous: only the
    /// leader of a complete world gives it.
    pub(crate) fn is_certain(self) -> bool {
        self == Reason::Complete
    }

    /// Returns whether a process gives this reason only to those that it would lead.
    pub(crate) fn is_of_a_leader(self) -> bool {
        matches!(self, Reason::Generation | Reason::Taken)
    }

    /// Returns whether a connection that is refused for this reason is tried again, until it succeeds.
    pub(crate) fn is_retried(self) -> bool {
        matches!(
            self,
            Reason::Crowded
                | Reason::Late
                | Reason::Early
                | Reason::Replaced
                | Reason::Elsewhere
                | Reason::Busy
        )
    }

    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().position(|reason| *reason == self).map_or(0, |at| at as u8 + 1)
    }

    pub(crate) fn from_code(code: u8) -> Self {
        usize::from(code).checked_sub(1).and_then(|at| Self::ALL.get(at)).copied().unwrap_or(Reason::Other)
    }
}

/// The reason why one side rejects the other, with a text that is sent to the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub reason: Reason,
    /// The problem and a remedy, as text.
    pub text: String,
    /// The position and the address of the worker to ask instead; only with [`Reason::Elsewhere`].
    pub leader: Option<Box<(usize, Address)>>,
    /// The generation of the world in which the worker is, or was last; only with [`Reason::Busy`] and
    /// [`Reason::Elsewhere`], otherwise 0.
    pub generation: u64,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), leader: None, generation: 0 }
    }

    /// Creates the refusal of a worker that does not lead, with the position and the address of the one that does, and
    /// the generation of the worker's world.
    pub fn elsewhere(text: impl Into<String>, position: usize, address: Address, generation: u64) -> Self {
        Self { generation, leader: Some(Box::new((position, address))), ..Self::new(Reason::Elsewhere, text) }
    }

    /// Creates the refusal of a worker that is still in the world of this generation.
    pub fn busy(text: impl Into<String>, generation: u64) -> Self {
        Self { generation, ..Self::new(Reason::Busy, text) }
    }

    /// Returns the refusal for bytes that are not valid in this protocol.
    pub(super) fn protocol() -> Self {
        Self::new(
            Reason::Protocol,
            "the received bytes are not the protocol of distribute's workers, or are not protected as here",
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text may be from another process.
        f.write_str(&distribute_log::plain(&self.text))
    }
}

impl std::error::Error for Refusal {}
