//! As whom a process comes to a rendezvous, and whether it comes to another one when that has failed. Pure: no socket, no clock.

use super::JoinError;
use crate::handshake::Reason;

/// What a process says of itself when it comes: the generation of the world of which it was a member last.
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
    /// That of a process which was a member of this generation.
    pub fn after(generation: u64) -> Self {
        Self { generation }
    }

    /// What to [say](super::Rendezvous::generation).
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// A rendezvous has failed. Whether to come to the next one, if there still is time.
    ///
    /// # Errors
    /// The error, where it would come to the same again.
    pub fn failed(&mut self, error: JoinError) -> Result<(), JoinError> {
        match error {
            // Another was lost while they met, and may be started again.
            JoinError::Lost { .. } => Ok(()),
            // The others have met without this one. It comes as one of whom they know nothing.
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
