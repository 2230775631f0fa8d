//! Why a call was not answered by what was asked for.

use std::fmt;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The service has refused the call or failed in it; the text is its own.
    Failed,
    /// The service has panicked.
    Panicked,
    /// The service has let go of the call without an answer.
    Dropped,
    /// The server has no service of this name.
    NoSuchService,
    /// The call is for others than this caller.
    NotAllowed,
    /// The calls that wait for answers take all memory that they may. The call was not carried out, and may be made again later.
    NoRoom,
    /// None that this version knows.
    Other,
}

impl FaultKind {
    const ALL: [Self; 6] =
        [Self::Failed, Self::Panicked, Self::Dropped, Self::NoSuchService, Self::NotAllowed, Self::NoRoom];

    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().position(|kind| *kind == self).map_or(0, |at| at as u8 + 1)
    }

    pub(crate) fn of(code: u8) -> Self {
        usize::from(code).checked_sub(1).and_then(|at| Self::ALL.get(at)).copied().unwrap_or(Self::Other)
    }
}

/// What the server says of a call that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// What was wrong, and what to do.
    pub text: String,
}

impl Fault {
    /// A fault.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It is from another process.
        f.write_str(&distribute_log::plain(&self.text))
    }
}

impl std::error::Error for Fault {}
