//! The times at which to retry connecting to a process that could not be reached. This module contains only pure values
//! and functions.

use super::state::Call;
use crate::handshake::{Purpose, Reason, Refusal};
use std::time::Duration;

/// The wait before the second attempt. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The wait before each of the first attempts of a worker that re-forms a group, whose leader usually leaves the
/// previous world within milliseconds.
const SHORT_WAIT: Duration = Duration::from_millis(5);

/// The number of attempts that follow a wait of [`SHORT_WAIT`] each. Then waits double.
const SHORT_WAITS: u32 = 10;

/// The longest wait between two attempts.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The maximum wait if the other side had too many connections. It is short because that number changes soon.
const CROWDED: Duration = Duration::from_millis(100);

/// The maximum number of attempts to join at a position that another process occupies. They take about 7 s, longer than
/// it takes to detect that the other process has failed. Detection takes up to twice
/// [`Settings::silence`](crate::Settings::silence) if a world is formed in between, because its timers start again.
const OFTEN: u32 = 19;

/// The retries of a connection to one process.
#[derive(Clone, Debug)]
pub struct Retries {
    wait: Duration,
    /// The number of remaining attempts after a short wait.
    short: u32,
    last: Option<String>,
    /// The number of attempts that failed because the position was occupied.
    taken: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Self { wait: FIRST_WAIT, short: 0, last: None, taken: 0 }
    }
}

impl Retries {
    /// Creates the state before the first attempt to make a call.
    pub fn new(call: &Call) -> Self {
        let joins = matches!(call.purpose, Purpose::Join { .. } | Purpose::Spare { .. });
        let short = if joins && call.generation > 0 { SHORT_WAITS } else { 0 };
        Self { short, last: call.before.clone(), ..Self::default() }
    }

    /// Returns the reason for the latest failure; `None` if there was none.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Records that a connection has failed or was closed. Returns the wait before the next attempt.
    pub fn broken(&mut self, reason: String) -> Duration {
        self.last = Some(reason);
        if self.short > 0 {
            self.short -= 1;
            return SHORT_WAIT;
        }
        let wait = self.wait;
        self.wait = (2 * wait).min(MAX_WAIT);
        wait
    }

    /// Records that one side has rejected the other. Returns the wait before the next attempt if a later attempt may
    /// succeed.
    ///
    /// # Errors
    /// Returns the refusal if no later attempt can succeed.
    pub fn refused(&mut self, refusal: Refusal) -> Result<Duration, Refusal> {
        match refusal.reason {
            Reason::Crowded => Ok(self.broken(refusal.to_string()).min(CROWDED)),
            reason if reason.is_retried() => Ok(self.broken(refusal.to_string())),
            // The position belongs to a process that has died, and whose death was not detected yet.
            Reason::Taken | Reason::Complete if self.taken < OFTEN => {
                self.taken += 1;
                // Short waits are for a leader that is about to leave its world.
                self.short = 0;
                Ok(self.broken(refusal.to_string()))
            }
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

    // INV-100
    #[test]
    fn a_group_that_re_forms_is_tried_often_at_first() {
        let call = |generation, purpose| Call {
            worker: 0,
            address: "10.0.0.1:7".parse().unwrap(),
            purpose,
            generation,
            table: 0,
            before: Some("it has left".to_owned()),
        };
        let (address, unformed) = (|| "10.0.0.2:7".to_owned(), None);
        for purpose in
            [Purpose::Join { address: address(), unformed }, Purpose::Spare { address: address(), unformed }]
        {
            let mut retries = Retries::new(&call(3, purpose.clone()));
            assert_eq!(retries.last(), Some("it has left"));
            let waits: Vec<_> = (0..16).map(|_| retries.broken("reset".to_owned()).as_millis()).collect();
            assert!(waits[..10].iter().all(|wait| *wait == 5) && waits[10..] == [10, 20, 40, 80, 160, 320]);
            assert_eq!(Retries::new(&call(0, purpose)).broken(String::new()), FIRST_WAIT);
        }
        assert_eq!(Retries::new(&call(3, Purpose::Link)).broken(String::new()), FIRST_WAIT);
    }

    // INV-83
    #[test]
    fn who_finds_all_places_taken_tries_again_soon() {
        let mut retries = Retries::default();
        let waits: Vec<_> = (0..100)
            .map(|_| retries.refused(Refusal::new(Reason::Crowded, "all are taken")).unwrap())
            .collect();
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(100)), "{waits:?}");
    }

    // INV-34
    #[test]
    fn a_successor_may_come_and_a_predecessor_is_not_let_in() {
        let mut retries = Retries::default();
        assert!(retries.refused(Refusal::new(Reason::Replaced, "of generation 1")).is_ok());
        assert_eq!(retries.last(), Some("of generation 1"));
        assert!(retries.refused(Refusal::new(Reason::Generation, "of generation 1")).is_err());
    }

    #[test]
    fn a_place_that_is_taken_is_tried_for_as_long_as_it_takes_to_notice_a_death() {
        let taken = || Refusal::new(Reason::Taken, "there is one already");
        let re_forms = Retries { short: SHORT_WAITS, ..Retries::default() };
        for mut retries in [Retries::default(), re_forms] {
            let mut waited = Duration::ZERO;
            while let Ok(wait) = retries.refused(taken()) {
                waited += wait;
            }
            let settings = crate::Settings::default();
            assert!(
                waited > 2 * settings.silence + settings.heartbeat && waited < 3 * settings.silence,
                "{waited:?}"
            );
        }
    }
}
