//! [`Standing`]: the current state of a member, and the calls that it has completed.

use crate::Fingerprint;
use serde::{Deserialize, Serialize};

/// The current state of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// The member runs user code.
    Running,
    /// The member waits for the others in a call.
    Waiting(Fingerprint),
    /// The member's data is in transit to the others: its link is slow.
    Sending {
        /// The number of bytes of a message that have arrived, and the length of the message. `None` if the
        /// call has arrived at some workers, but not at all.
        part: Option<(u64, u64)>,
    },
    /// The closure of the member has returned.
    Returned,
    /// The closure of the member has failed or panicked, which is the cause of its absence.
    Failed,
}

/// The current state of one member, and the calls that it has completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The global id of the replica.
    pub replica: usize,
    /// The current state.
    pub presence: Presence,
    /// The number of calls completed in this step.
    pub completed: u64,
    /// The last completed call.
    pub last: Option<Fingerprint>,
}

impl Standing {
    /// Creates the standing of a member that has just begun.
    pub fn running(replica: usize) -> Self {
        Self { replica, presence: Presence::Running, completed: 0, last: None }
    }

    /// Creates the standing of a member that waits in its first call.
    pub fn waiting(replica: usize, fingerprint: Fingerprint) -> Self {
        Self { presence: Presence::Waiting(fingerprint), ..Self::running(replica) }
    }

    /// Returns the call in which the member waits, if it does.
    pub fn call(&self) -> Option<&Fingerprint> {
        match &self.presence {
            Presence::Waiting(call) => Some(call),
            _ => None,
        }
    }

    /// Whether the member is blocked or finished: its state changes only if the others proceed.
    pub fn is_settled(&self) -> bool {
        !matches!(self.presence, Presence::Running | Presence::Sending { .. })
    }

    /// Whether the closure of the member has returned, failed or panicked.
    pub fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Returned | Presence::Failed)
    }

    /// Whether all members wait in equal calls. This is the common case, so it is found without allocating.
    pub fn all_agree(all: &[Standing]) -> bool {
        let mut calls = all.iter().map(Standing::call);
        match calls.next() {
            Some(Some(first)) => calls.all(|call| call.is_some_and(|call| call.matches(first))),
            _ => false,
        }
    }
}
