//! The generation that a process claims in a rendezvous, and whether it may retry after a failure. This module contains
//! only pure functions and values.

use super::JoinError;
use crate::handshake::Reason;

/// The state that a process claims to have in a rendezvous: the generation of the last world of which it was a member.
///
/// ```
/// use distribute_net::rendezvous::claim::Claim;
/// assert_eq!(Claim::default().generation(), 0); // it has just started
/// assert_eq!(Claim::after(3).generation(), 3);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    generation: u64,
}

impl Claim {
    /// Creates the claim of a process that was a member of the world of the given generation.
    pub fn after(generation: u64) -> Self {
        Self { generation }
    }

    /// Returns the generation to pass to [`Rendezvous::generation`](super::Rendezvous::generation).
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Processes the failure of a rendezvous. Returns `Ok` if the process may retry while time is left. If the others
    /// have formed a world without this process, the claim becomes that of a process that has just started.
    ///
    /// # Errors
    /// Returns the error if no time is left, or if a retry would fail in the same way.
    pub fn failed(&mut self, error: JoinError) -> Result<(), JoinError> {
        match error {
            // Another worker failed during the rendezvous, and may be restarted.
            JoinError::Lost { .. } => Ok(()),
            // The others have formed a world without this process. It returns as a new process.
            JoinError::Refused { refusal, .. }
                if refusal.reason == Reason::Generation && self.generation > 0 =>
            {
                self.generation = 0;
                Ok(())
            }
            error => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Refusal;
    use distribute_cluster::Job;

    fn refused(reason: Reason) -> JoinError {
        let refusal = Refusal::new(reason, "");
        JoinError::Refused { worker: 0, task: Job::Worker.task(0), address: String::new(), refusal }
    }

    // INV-34
    #[test]
    fn who_was_left_behind_comes_as_one_that_has_just_started_and_once() {
        let mut claim = Claim::after(3);
        claim.failed(refused(Reason::Generation)).unwrap();
        assert_eq!(claim, Claim::default());
        claim.failed(refused(Reason::Generation)).unwrap_err();
        Claim::after(3).failed(refused(Reason::Cluster)).unwrap_err();
    }

    #[test]
    fn a_loss_while_they_meet_is_another_try_as_the_same() {
        let mut claim = Claim::after(3);
        let (task, reason) = (Job::Worker.task(1), "reset".to_owned());
        claim.failed(JoinError::Lost { worker: 1, task, address: String::new(), reason }).unwrap();
        assert_eq!(claim.generation(), 3);
    }
}
