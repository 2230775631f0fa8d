//! The standing of a member: what it is doing, and what it has done.

use crate::Fingerprint;
use serde::{Deserialize, Serialize};

/// What a member is doing at the moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// It runs user code.
    Running,
    /// It waits for the others in a call.
    Waiting(Fingerprint),
    /// Its data is on the way to the others: its link is slow.
    Sending {
        /// The number of bytes of a message that have come, and of the whole message; `None` if the call has come to some workers, and
        /// not to all.
        part: Option<(u64, u64)>,
    },
    /// Its closure has returned.
    Returned,
    /// Its closure has failed or panicked, which is the cause of its absence.
    Failed,
}

/// What one member is doing, and what it has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The global id of the replica.
    pub replica: usize,
    /// What it is doing at the moment.
    pub presence: Presence,
    /// How many calls it has completed in this step.
    pub completed: u64,
    /// The last call it completed.
    pub last: Option<Fingerprint>,
}

impl Standing {
    /// A member that has just begun.
    pub fn running(replica: usize) -> Self {
        Self { replica, presence: Presence::Running, completed: 0, last: None }
    }

    /// A member that waits in its first call.
    pub fn waiting(replica: usize, fingerprint: Fingerprint) -> Self {
        Self { presence: Presence::Waiting(fingerprint), ..Self::running(replica) }
    }

    /// The call in which it waits, if it does.
    pub fn call(&self) -> Option<&Fingerprint> {
        match &self.presence {
            Presence::Waiting(call) => Some(call),
            _ => None,
        }
    }

    /// Whether it does nothing more until the others move.
    pub fn is_settled(&self) -> bool {
        !matches!(self.presence, Presence::Running | Presence::Sending { .. })
    }

    /// Whether its closure is over.
    pub fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Returned | Presence::Failed)
    }

    /// Whether all members wait in equal calls. The common case, found without allocating.
    pub fn all_agree(all: &[Standing]) -> bool {
        let mut calls = all.iter().map(Standing::call);
        match calls.next() {
            Some(Some(first)) => calls.all(|call| call.is_some_and(|call| call.matches(first))),
            _ => false,
        }
    }
}
