//! Why one side does not let the other in.

use std::fmt;

/// The kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The other side speaks another protocol, or sent what can't be read.
    Protocol,
    /// Another version of this crate's protocol.
    Version,
    /// Another job.
    Job,
    /// Another secret, or only one side has one.
    Secret,
    /// The worker that has connected is of an earlier generation: it has been replaced.
    Generation,
    /// The worker that was connected to is of an earlier generation. Its successor may come.
    Replaced,
    /// Another cluster or program: not what all workers have to have in common.
    Cluster,
    /// There is no worker of that number, or it is not its turn to connect.
    Rank,
    /// There is a worker of that number already.
    Taken,
    /// The world is complete.
    Complete,
    /// What the world was made for has ended.
    Ended,
    /// Too many connections that have not said who they are.
    Crowded,
    /// It took too long.
    Late,
    /// The worker that was connected to has not come so far that it could take the other one. It may be tried again.
    Early,
    /// A call of a worker that answers none, or the other way round.
    Purpose,
    /// The certificate of one side is that of another task.
    Certificate,
    /// One side is a process of another user, and the job has no secret.
    User,
    /// None that this version knows.
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

/// Why one side does not let the other in, in words that are told to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub reason: Reason,
    /// What is wrong, and what to do.
    pub text: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    /// Bytes that aren't of this protocol.
    pub(super) fn protocol() -> Self {
        Self::new(
            Reason::Protocol,
            "what was sent is not the protocol of distribute's workers, or not protected as here",
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be from another process.
        f.write_str(&distribute_log::plain(&self.text))
    }
}

impl std::error::Error for Refusal {}
