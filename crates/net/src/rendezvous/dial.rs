//! Connecting to a process that may not be there yet.

use super::attempt::{Attempt, Calling, Failure};
use super::meeting::Call;
use super::retries::Retries;
use crate::handshake::Refusal;
use crate::identity::PolicyError;
use crate::stream::Stream;
use distribute_cluster::Deadline;
use rustix::event::PollFd;
use std::time::Duration;

/// Connects to a process, again and again until it is there.
#[derive(Debug)]
pub(crate) struct Dial {
    call: Call,
    state: State,
    retries: Retries,
    attempts: usize,
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
    /// Makes this call. A task that is called by itself has the number 0.
    pub fn new(call: Call) -> Self {
        let mut retries = Retries::default();
        if let Some(before) = &call.before {
            retries.note(before.clone());
        }
        Self { call, state: State::Waiting(Deadline::after(Duration::ZERO)), retries, attempts: 0 }
    }

    /// Whom it calls.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// What came of the last attempt, or why there is none.
    pub fn last(&self) -> Option<String> {
        let looking = matches!(&self.state, State::Trying(attempt) if attempt.is_looking());
        let last = self.retries.last().map(str::to_owned);
        last.or_else(|| looking.then(|| "its name is still being looked up".to_owned()))
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
                    match Attempt::begin(&self.call, self.attempts - 1) {
                        Ok(attempt) => {
                            self.state = State::Trying(attempt);
                            continue;
                        }
                        Err(failure) => Err(failure),
                    }
                }
                State::Trying(attempt) => attempt.attend(&self.call, calling),
            };
            let failure = match result {
                Ok(stream) => return Ok(stream),
                Err(failure) => failure,
            };
            let wait = match failure {
                Failure::Broken(reason) => self.retries.broken(reason),
                Failure::Refused(refusal) => self.retries.refused(refusal).map_err(Failed::Refused)?,
                Failure::Policy(policy) => return Err(Failed::Policy(policy)),
            };
            self.state = State::Waiting(Deadline::after(wait));
        }
    }
}
