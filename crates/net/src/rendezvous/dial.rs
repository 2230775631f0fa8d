//! Connecting to a process that may not have started yet.

use super::attempt::{Attempt, Calling, Failure};
use super::meeting::Call;
use super::retries::Retries;
use crate::handshake::Refusal;
use crate::identity::PolicyError;
use crate::stream::Stream;
use distribute_cluster::Deadline;
use rustix::event::PollFd;
use std::time::Duration;

/// A call that is retried until the process is up.
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

/// The reason that there will be no connection.
#[derive(Debug)]
pub(crate) enum Failed {
    Refused(Refusal),
    Policy(PolicyError),
}

impl Dial {
    /// Creates a call, which starts at once. A task outside a world has the number 0.
    pub fn new(call: Call) -> Self {
        let mut retries = Retries::default();
        if let Some(before) = &call.before {
            retries.note(before.clone());
        }
        Self { call, state: State::Waiting(Deadline::after(Duration::ZERO)), retries, attempts: 0 }
    }

    /// Returns the call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Returns the result of the last attempt, or the reason that there is none.
    pub fn last(&self) -> Option<String> {
        let looking = matches!(&self.state, State::Trying(attempt) if attempt.is_looking());
        let last = self.retries.last().map(str::to_owned);
        last.or_else(|| looking.then(|| "its name is still being looked up".to_owned()))
    }

    /// Returns the events to wait for, if there can be any.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Waiting(_) => None,
            State::Trying(attempt) => attempt.interest(),
        }
    }

    /// Returns the time until the next attempt, unless one is running.
    pub fn pause(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting(until) => Some(until.remaining()),
            State::Trying(_) => None,
        }
    }

    /// Continues without blocking. Returns the connection once the other side has accepted it.
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
