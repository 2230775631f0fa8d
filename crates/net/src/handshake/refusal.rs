//! The reasons that one side refuses the other.

use std::fmt;

/// A kind of reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The other side uses another protocol, or sent malformed bytes.
    Protocol,
    /// The versions of the protocol differ.
    Version,
    /// The jobs differ.
    Job,
    /// The secrets differ, or only one side has one.
    Secret,
    /// The worker that has connected is of an earlier generation, and was replaced.
    Generation,
    /// The worker that was connected to is of an earlier generation. Its successor may come.
    Replaced,
    /// The clusters or programs differ in what all workers must have in common.
    Cluster,
    /// No worker has that number, or it is not its turn to connect.
    Rank,
    /// A worker with that number has already connected.
    Taken,
    /// The world is complete.
    Complete,
    /// The work of the world has ended.
    Ended,
    /// There are too many connections that have not identified themselves.
    Crowded,
    /// The handshake timed out.
    Late,
    /// The worker that was connected to is not ready for the other one. It may be retried.
    Early,
    /// A call has reached a worker that answers none, or the reverse.
    Purpose,
    /// The certificate of one side belongs to another task.
    Certificate,
    /// One side is a process of another user, and the job has no secret.
    User,
    /// A reason that this version does not know.
    Other,
}

impl Reason {
    const ALL: [Reason; 17] = [
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
    ];

    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().position(|reason| *reason == self).map_or(0, |at| at as u8 + 1)
    }

    pub(crate) fn of(code: u8) -> Self {
        usize::from(code).checked_sub(1).and_then(|at| Self::ALL.get(at)).copied().unwrap_or(Reason::Other)
    }
}

/// The reason that one side refuses the other, in a text that is sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub reason: Reason,
    /// The problem, and its solution.
    pub text: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    /// Returns the refusal of bytes that are not of this protocol.
    pub(super) fn protocol() -> Self {
        Self::new(
            Reason::Protocol,
            "what was sent is not the protocol of distribute's workers, or not protected as here",
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
