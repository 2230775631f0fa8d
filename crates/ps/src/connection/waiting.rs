//! A request that is under way, until its answer is there.

use super::Shared;
use super::flow::Permit;
use super::link::NoLink;
use crate::SERVICE;
use crate::codec::decode_answer;
use distribute_cluster::Deadline;
use distribute_net::Message;
use distribute_params::{ChannelError, Response, Waiting};
use distribute_server::{CallError, Client, Started};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// What waits for the answer to a request.
pub(super) struct Waits(Arc<Call>);

/// A request that was sent, perhaps more than once. Its answer is taken by who waits for it, or by who needs its room.
pub(super) struct Call {
    shared: Arc<Shared>,
    words: String,
    deadline: Deadline,
    /// Locked by who waits for the answer, until the deadline at most.
    state: Mutex<State>,
}

enum State {
    Underway(Box<Underway>),
    Over(Result<Response, ChannelError>),
    Taken,
}

/// What is kept of a request until its answer is there.
struct Underway {
    message: Message,
    /// The connection that it was sent over last.
    client: Arc<Client>,
    /// The call there; `None` if the connection was lost.
    call: Option<Started>,
    /// Its room, until this is dropped.
    _permit: Permit,
}

impl Waits {
    /// Sends a request.
    pub fn send(
        shared: Arc<Shared>,
        words: String,
        message: Message,
        permit: Permit,
        deadline: Deadline,
    ) -> Result<Self, ChannelError> {
        let (client, call) = send(&shared, &words, &message, deadline, None)?;
        let number = permit.call();
        let underway = Underway { message, client, call: Some(call), _permit: permit };
        let state = Mutex::new(State::Underway(Box::new(underway)));
        let call = Arc::new(Call { shared, words, deadline, state });
        call.shared.flow.sent(number, &call);
        Ok(Self(call))
    }
}

impl Waiting for Waits {
    fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
        let call = self.0;
        let mut state = call.state.lock().unwrap_or_else(PoisonError::into_inner);
        call.advance(&mut state, call.deadline);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Over(answer) => answer,
            State::Underway(_) | State::Taken => {
                let (server, request, timeout) =
                    (call.shared.name.clone(), call.words.clone(), call.deadline.timeout());
                let reason = "its answer has not come".to_owned();
                Err(ChannelError::Late { server, request, timeout, reason })
            }
        }
    }
}

impl Call {
    /// Takes the answer, so that there is room for another call; says whether it has. It does not where another thread waits for
    /// it, or `patience` was too short.
    pub fn collect(&self, patience: Deadline) -> bool {
        let mut state: MutexGuard<'_, State> = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        matches!(*state, State::Underway(_)) && self.advance(&mut state, patience)
    }

    /// Waits for the answer, and gives the room back when it is there; says whether it is.
    fn advance(&self, state: &mut State, patience: Deadline) -> bool {
        if let State::Underway(underway) = state
            && let Some(answer) = self.answer(underway, patience)
        {
            *state = State::Over(answer);
        }
        !matches!(state, State::Underway(_))
    }

    /// The answer; `None` where it has time, but not `patience`.
    fn answer(&self, underway: &mut Underway, patience: Deadline) -> Option<Result<Response, ChannelError>> {
        let Self { shared, words, .. } = self;
        let deadline =
            if patience.remaining() < self.deadline.remaining() { patience } else { self.deadline };
        let only_patience_is_over = || deadline.has_passed() && !self.deadline.has_passed();
        loop {
            let Some(call) = underway.call.take() else {
                match send(shared, words, &underway.message, deadline, Some(&underway.client)) {
                    Ok((client, call)) => (underway.client, underway.call) = (client, Some(call)),
                    Err(_) if only_patience_is_over() => return None,
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            if !call.ready(deadline.remaining()) && only_patience_is_over() {
                underway.call = Some(call);
                return None;
            }
            match call.wait(Duration::ZERO) {
                Ok(answer) => return Some(self.decode(answer)),
                // Whether it was carried out is not known: a change has its number. The call is sent again.
                Err(CallError::Lost { .. }) => {}
                Err(error) => return Some(Err(failed(shared, words, self.deadline, error))),
            }
        }
    }

    fn decode(&self, answer: Message) -> Result<Response, ChannelError> {
        let server = || self.shared.name.clone();
        match decode_answer(answer) {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(refusal)) => Err(ChannelError::Refused { server: server(), refusal }),
            Err(error) => {
                let found = format!("what is no answer, as {error}");
                Err(ChannelError::Answer { server: server(), request: self.words.clone(), found })
            }
        }
    }
}

/// Sends a request over another connection than the one that was lost, again and again until one lets it.
fn send(
    shared: &Shared,
    words: &str,
    message: &Message,
    deadline: Deadline,
    lost: Option<&Arc<Client>>,
) -> Result<(Arc<Client>, Started), ChannelError> {
    let mut lost = lost.cloned();
    loop {
        let client = shared.link.client(deadline, lost.as_ref()).map_err(|error| {
            let (server, request, timeout) = (shared.name.clone(), words.to_owned(), deadline.timeout());
            match error {
                NoLink::Late(reason) => ChannelError::Late { server, request, timeout, reason },
                NoLink::Refused(reason) => ChannelError::Unreachable { server, request, reason },
            }
        })?;
        match client.start(SERVICE, message.clone(), deadline.remaining()) {
            Ok(call) => return Ok((client, call)),
            Err(CallError::Lost { .. }) => lost = Some(client),
            Err(error) => return Err(failed(shared, words, deadline, error)),
        }
    }
}

fn failed(shared: &Shared, words: &str, deadline: Deadline, error: CallError) -> ChannelError {
    let (server, request, timeout) = (shared.name.clone(), words.to_owned(), deadline.timeout());
    match error {
        CallError::TooLong { what, length, limit, .. } => {
            ChannelError::TooLarge { server, request, what, found: length as u64, limit: limit as u64 }
        }
        CallError::Late { .. } | CallError::Room { .. } => {
            ChannelError::Late { server, request, timeout, reason: error.to_string() }
        }
        CallError::Failed { fault, .. } => ChannelError::Answer { server, request, found: fault.to_string() },
        other => ChannelError::Unreachable { server, request, reason: other.to_string() },
    }
}
