//! [`ReplicaStatus`]: the current state of a member of a collective call, and the number of calls that it has
//! completed.

use crate::Fingerprint;
use serde::{Deserialize, Serialize};

/// The current state of a member: whether it computes, waits, or is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// The member runs the user's code.
    Running,
    /// The member waits for the others in a call.
    Waiting(Fingerprint),
    /// The member has made the call, but its data is still in transit to the others because its link is slow.
    Sending {
        /// The number of bytes of a message that have arrived, and the length of the message; `None` if the message has
        /// arrived at some workers, but not at all of them.
        part: Option<(u64, u64)>,
    },
    /// The closure of the member has returned.
    Returned,
    /// The closure of the member has failed or panicked.
    Failed,
}

/// The current state of one member, and the calls that it has completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// The global id of the replica.
    pub replica: usize,
    /// The current state of the member.
    pub presence: Presence,
    /// The number of calls that the member has completed in this step.
    pub completed: u64,
    /// The last call that the member has completed; `None` if there is none.
    pub last: Option<Fingerprint>,
}

impl ReplicaStatus {
    /// Creates the status of a member that has just begun a step.
    pub fn running(replica: usize) -> Self {
        Self { replica, presence: Presence::Running, completed: 0, last: None }
    }

    /// Creates the status of a member that waits in its first call.
    pub fn waiting(replica: usize, fingerprint: Fingerprint) -> Self {
        Self { presence: Presence::Waiting(fingerprint), ..Self::running(replica) }
    }

    /// Returns the call in which the member waits; `None` if it does not wait.
    pub fn call(&self) -> Option<&Fingerprint> {
        match &self.presence {
            Presence::Waiting(call) => Some(call),
            _ => None,
        }
    }

    /// Returns whether the member is blocked or finished, so that its state changes only if the others proceed.
    pub fn is_blocked_or_done(&self) -> bool {
        !matches!(self.presence, Presence::Running | Presence::Sending { .. })
    }

    /// Returns whether the closure of the member has ended: it has returned, failed or panicked.
    pub fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Returned | Presence::Failed)
    }

    /// Returns whether the closure of the member has failed or panicked.
    pub fn has_failed(&self) -> bool {
        matches!(self.presence, Presence::Failed)
    }

    /// Returns whether all members wait in equal calls, without allocating, because this is the common case.
    pub fn all_agree(all: &[ReplicaStatus]) -> bool {
        let mut calls = all.iter().map(ReplicaStatus::call);
        match calls.next() {
            Some(Some(first)) => calls.all(|call| call.is_some_and(|call| call.matches(first))),
            _ => false,
        }
    }
}
