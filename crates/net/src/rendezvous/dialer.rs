//! Repeated attempts to connect to a process that may not have started yet.

use super::attempt::{Attempt, AttemptError, CallContext};
use super::retries::Retries;
use super::state::Call;
use crate::handshake::Refusal;
use crate::identity::PolicyError;
use crate::stream::Stream;
use distribute_cluster::Deadline;
use rustix::event::PollFd;
use std::time::Duration;

/// A call that is retried until the process is running.
#[derive(Debug)]
pub(crate) struct Dialer {
    call: Call,
    state: State,
    retries: Retries,
    attempts: usize,
    /// The latest refusal after which the call is retried.
    answer: Option<Refusal>,
    /// Whether an attempt has failed without an answer since [`take_missed`](Self::take_missed) was called.
    is_missed: bool,
}

/// The wait after an answer that another attempt would not change, if the call must be retried nevertheless.
const RELUCTANT: Duration = Duration::from_millis(500);

#[derive(Debug)]
enum State {
    Waiting(Deadline),
    Trying(Attempt),
}

/// The reason why further attempts are useless.
#[derive(Debug)]
pub(crate) enum Failed {
    Refused(Refusal),
    Policy(PolicyError),
}

impl Dialer {
    /// Creates a call. The first attempt begins with the first [`advance`](Self::advance).
    pub fn new(call: Call) -> Self {
        Self::after(call, Duration::ZERO)
    }

    /// Creates a call whose first attempt begins after a time.
    pub fn after(call: Call, wait: Duration) -> Self {
        let retries = Retries::new(&call);
        let (state, attempts, answer, is_missed) = (State::Waiting(Deadline::after(wait)), 0, None, false);
        Self { call, state, retries, attempts, answer, is_missed }
    }

    /// Begins the next attempt with the next [`advance`](Self::advance), unless one is running. With `only_first` this
    /// applies only to the first attempt.
    pub fn hurry(&mut self, only_first: bool) {
        if let (State::Waiting(until), true) = (&mut self.state, self.attempts == 0 || !only_first) {
            *until = Deadline::after(Duration::ZERO);
        }
    }

    /// Retries a call later that [`advance`](Self::advance) has given up, for the given reason.
    pub fn postpone(&mut self, reason: String) {
        self.retries.broken(reason);
        self.state = State::Waiting(Deadline::after(RELUCTANT));
    }

    /// Removes and returns the latest refusal after which the call is retried.
    pub fn take_answer(&mut self) -> Option<Refusal> {
        self.answer.take()
    }

    /// Returns whether an attempt has failed without an answer since this was last called.
    pub fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.is_missed)
    }

    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Returns the reason for the latest failed attempt or, before the first failure, for the failure of an earlier
    /// link. Without either, returns a note while the name is being looked up, and `None` otherwise.
    pub fn last(&self) -> Option<String> {
        let looking = matches!(&self.state, State::Trying(attempt) if attempt.is_looking());
        let last = self.retries.last().map(str::to_owned);
        last.or_else(|| looking.then(|| "its name is still being looked up".to_owned()))
    }

    /// Returns the socket events for which to wait; `None` between attempts.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Waiting(_) => None,
            State::Trying(attempt) => attempt.interest(),
        }
    }

    /// Returns the time until the next attempt; `None` while an attempt is running.
    pub fn pause(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting(until) => Some(until.remaining()),
            State::Trying(_) => None,
        }
    }

    /// Continues the attempt without blocking, or begins the next one if it is due. Returns the connection once the
    /// other side has accepted it, and `None` before. A failed attempt is repeated later.
    ///
    /// # Errors
    /// - [`Failed::Refused`]: the other side has rejected this one, and would do so again.
    /// - [`Failed::Policy`]: the connection would be unprotected.
    pub fn advance(&mut self, context: &CallContext) -> Result<Option<Stream>, Failed> {
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
                State::Trying(attempt) => attempt.advance(&self.call, context),
            };
            let failure = match result {
                Ok(stream) => return Ok(stream),
                Err(failure) => failure,
            };
            let wait = match failure {
                AttemptError::Broken(reason) => {
                    self.is_missed = true;
                    self.retries.broken(reason)
                }
                AttemptError::Refused(refusal) => {
                    self.answer = Some(refusal.clone());
                    self.retries.refused(refusal).map_err(Failed::Refused)?
                }
                AttemptError::Policy(policy) => return Err(Failed::Policy(policy)),
            };
            self.state = State::Waiting(Deadline::after(wait));
        }
    }
}
