//! Connecting to a process that may not be there yet.

use super::attempt::{Attempt, Calling, Failure, Target};
use crate::handshake::{Purpose, Reason, Refusal};
use crate::identity::PolicyError;
use crate::stream::Stream;
use distribute_cluster::{Address, Deadline};
use rustix::event::PollFd;
use std::time::Duration;

/// How long to wait before the second attempt. Each next wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Connects to a process, again and again until it is there.
#[derive(Debug)]
pub(crate) struct Dial {
    target: Target,
    state: State,
    wait: Duration,
    attempts: usize,
    last: Option<String>,
}

#[derive(Debug)]
enum State {
    Waiting(Deadline),
    Trying(Attempt),
}

/// Why there will be no connection.
#[derive(Debug)]
pub(crate) enum Failed {
    Refused(Refusal),
    Policy(PolicyError),
}

impl Dial {
    /// To worker 0 of a world, or another of its workers; a task that is called has the number 0.
    pub fn new(worker: usize, address: Address, purpose: Purpose) -> Self {
        let state = State::Waiting(Deadline::after(Duration::ZERO));
        let target = Target { worker, address, purpose };
        Self { target, state, wait: FIRST_WAIT, attempts: 0, last: None }
    }

    /// The worker that it leads to.
    pub fn worker(&self) -> usize {
        self.target.worker
    }

    /// Where that is.
    pub fn address(&self) -> &Address {
        &self.target.address
    }

    /// What came of the last attempt, or why there is none.
    pub fn last(&self) -> Option<String> {
        let looking = matches!(&self.state, State::Trying(attempt) if attempt.is_looking());
        self.last.clone().or_else(|| looking.then(|| "its name is still being looked up".to_owned()))
    }

    /// What has come before the first attempt.
    pub fn note(&mut self, reason: String) {
        self.last = Some(reason);
    }

    /// What to wait for, if something can come.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Waiting(_) => None,
            State::Trying(attempt) => attempt.interest(),
        }
    }

    /// When to go on although nothing has come.
    pub fn pause(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting(until) => Some(until.remaining()),
            State::Trying(_) => None,
        }
    }

    /// Goes on as far as possible at once. Gives the connection once the other side has said welcome.
    pub fn attend(&mut self, calling: &Calling) -> Result<Option<Stream>, Failed> {
        loop {
            let result = match &mut self.state {
                State::Waiting(until) if !until.has_passed() => return Ok(None),
                State::Waiting(_) => {
                    self.attempts += 1;
                    match Attempt::begin(&self.target, self.attempts - 1) {
                        Ok(attempt) => {
                            self.state = State::Trying(attempt);
                            continue;
                        }
                        Err(failure) => Err(failure),
                    }
                }
                State::Trying(attempt) => attempt.attend(&self.target, calling),
            };
            let failure = match result {
                Ok(stream) => return Ok(stream),
                Err(failure) => failure,
            };
            self.last = Some(match failure {
                Failure::Broken(reason) => reason,
                Failure::Refused(refusal) => match refusal.reason {
                    Reason::Crowded | Reason::Late | Reason::Replaced => refusal.to_string(),
                    _ => return Err(Failed::Refused(refusal)),
                },
                Failure::Policy(policy) => return Err(Failed::Policy(policy)),
            });
            self.state = State::Waiting(Deadline::after(self.wait));
            self.wait = (2 * self.wait).min(LONGEST_WAIT);
        }
    }
}
