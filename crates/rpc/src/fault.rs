//! Faults: the errors with which a server answers a call.

use std::fmt;

/// The kind of a fault: where and why the call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The service has rejected the call or has failed. The text comes from the service.
    Failed,
    /// The service has panicked.
    Panicked,
    /// The service has dropped the reply without answering.
    Dropped,
    /// The server has no service with this name.
    NoSuchService,
    /// The caller may not make this call.
    NotAllowed,
    /// Unanswered calls occupy all the memory that is allowed for them. The call was not executed, and can be retried
    /// later.
    NoRoom,
    /// A kind that is unknown to this version.
    Other,
}

impl FaultKind {
    const ALL: [Self; 6] =
        [Self::Failed, Self::Panicked, Self::Dropped, Self::NoSuchService, Self::NotAllowed, Self::NoRoom];

    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().position(|kind| *kind == self).map_or(0, |at| at as u8 + 1)
    }

    pub(crate) fn from_code(code: u8) -> Self {
        usize::from(code).checked_sub(1).and_then(|at| Self::ALL.get(at)).copied().unwrap_or(Self::Other)
    }
}

/// The error with which a server answers a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The problem and a remedy, as text.
    pub text: String,
}

impl Fault {
    /// Creates a fault.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text is from another process.
        f.write_str(&distribute_log::plain(&self.text))
    }
}

impl std::error::Error for Fault {}
