//! When to connect again to a process that could not be reached. Pure: no socket, no clock.

use crate::handshake::{Reason, Refusal};
use std::time::Duration;

/// How long to wait before the second attempt. Each next wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// The attempts to connect to a process.
#[derive(Clone, Debug)]
pub struct Retries {
    wait: Duration,
    last: Option<String>,
}

impl Default for Retries {
    /// Before the first attempt.
    fn default() -> Self {
        Self { wait: FIRST_WAIT, last: None }
    }
}

impl Retries {
    /// What came of the last attempt.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// What has come before the first attempt.
    pub fn note(&mut self, reason: String) {
        self.last = Some(reason);
    }

    /// There was no connection, or it has ended. How long to wait before the next attempt.
    pub fn broken(&mut self, reason: String) -> Duration {
        self.last = Some(reason);
        let wait = self.wait;
        self.wait = (2 * wait).min(LONGEST_WAIT);
        wait
    }

    /// The other side has refused, or this one has. How long to wait before the next attempt, if another one may be let in.
    ///
    /// # Errors
    /// The refusal, if none will.
    pub fn refused(&mut self, refusal: Refusal) -> Result<Duration, Refusal> {
        match refusal.reason {
            Reason::Crowded | Reason::Late | Reason::Replaced => Ok(self.broken(refusal.to_string())),
            _ => Err(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_second() {
        let mut retries = Retries::default();
        let waits: Vec<_> = (0..8).map(|_| retries.broken("reset".to_owned()).as_millis()).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(retries.last(), Some("reset"));
    }

    // INV-34
    #[test]
    fn a_successor_may_come_and_a_predecessor_is_not_let_in() {
        let mut retries = Retries::default();
        assert!(retries.refused(Refusal::new(Reason::Replaced, "of generation 1")).is_ok());
        assert_eq!(retries.last(), Some("of generation 1"));
        assert!(retries.refused(Refusal::new(Reason::Generation, "of generation 1")).is_err());
    }
}
