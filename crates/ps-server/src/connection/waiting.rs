//! A request in flight, until its response arrives.

use super::Shared;
use super::in_flight::Permit;
use super::order::SendOrder;
use crate::SERVICE;
use crate::codec::{acknowledge, decode_answer};
use distribute_cluster::Deadline;
use distribute_net::Message;
use distribute_ps_tables::{ChannelError, Refusal, RefusalKind, Response, WaitForResponse};
use distribute_rpc::{CallError, Client, FaultKind, Started};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A handle to wait for the response to a request.
pub(super) struct PendingCall(Arc<Call>);

/// A request that may be sent more than once. Its response is received by the thread that waits for it, or by another
/// thread that needs the space of the request.
pub(super) struct Call {
    shared: Arc<Shared>,
    described: String,
    /// Whether the request may change the server's state.
    changes: bool,
    deadline: Deadline,
    /// The response or, before it arrives, the reserved space. The thread that waits for the response holds this lock,
    /// at most until the deadline.
    state: Mutex<State>,
    /// The message, and the connection over which it was last sent. No thread waits while it holds this lock.
    sent: Mutex<InFlightMessage>,
}

enum State {
    /// The call has no response yet, and occupies space.
    Pending {
        _room: Permit,
    },
    Over(Result<Response, ChannelError>),
    Taken,
}

/// The message of a request, and how it was last sent.
struct InFlightMessage {
    message: Message,
    /// The connection over which the request was last sent; `None` if it was never sent.
    client: Option<Arc<Client>>,
    /// The call on that connection. `None` before the request is sent, after the connection was lost, and after the
    /// response has arrived.
    call: Option<Arc<Started>>,
    /// The error if this request cannot be sent, although other requests can.
    failed: Option<ChannelError>,
}

impl PendingCall {
    /// Sends a request. `permit` reserves its space until the response arrives.
    pub fn send(
        shared: Arc<Shared>,
        described: String,
        message: Message,
        permit: Permit,
        deadline: Deadline,
    ) -> Result<Self, ChannelError> {
        let (number, changes) = (permit.call(), permit.changes() > 0);
        let sent = Mutex::new(InFlightMessage { message, client: None, call: None, failed: None });
        let call = Call {
            shared,
            described,
            changes,
            deadline,
            state: Mutex::new(State::Pending { _room: permit }),
            sent,
        };
        let call = Arc::new(call);
        call.shared.in_flight.sent(number, &call);
        SendOrder::send(&call.shared, &call, deadline, None)?;
        Ok(Self(call))
    }
}

impl WaitForResponse for PendingCall {
    fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
        let call = self.0;
        let mut state = call.state.lock();
        call.advance(&mut state, call.deadline);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Over(answer) => answer,
            State::Pending { .. } | State::Taken => {
                Err(call.timed_out("its answer has not arrived".to_owned()))
            }
        }
    }
}

impl Call {
    /// Receives the response, to make space for another call. Returns `false` if another thread is waiting for the
    /// response or has received it, or if it has not arrived when `patience` has passed.
    pub fn collect(&self, patience: Deadline) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        matches!(*state, State::Pending { .. }) && self.advance(&mut state, patience)
    }

    /// Waits for the response, at most until `patience`, and then drops the message. Returns whether the response has
    /// arrived.
    fn advance(&self, state: &mut State, patience: Deadline) -> bool {
        if let State::Pending { .. } = state
            && let Some(answer) = self.answer(patience)
        {
            *state = State::Over(answer);
            // The message is no longer needed, and may be large.
            self.sent().message = Message::new("", "");
        }
        !matches!(state, State::Pending { .. })
    }

    /// Waits for the response and returns it; `None` if `patience` passes before the request's own deadline. If the
    /// connection is lost, sends the request again. If the deadline passes or the request fails, the response is an
    /// error.
    fn answer(&self, patience: Deadline) -> Option<Result<Response, ChannelError>> {
        let deadline =
            if patience.remaining() < self.deadline.remaining() { patience } else { self.deadline };
        let only_patience_is_over = || deadline.has_passed() && !self.deadline.has_passed();
        loop {
            let (client, call) = {
                let mut sent = self.sent();
                if let Some(error) = sent.failed.take() {
                    return Some(Err(error));
                }
                (sent.client.clone(), sent.call.clone())
            };
            let Some(call) = call else {
                match SendOrder::send(&self.shared, self, deadline, client.as_ref()) {
                    Ok(()) => {}
                    Err(_) if only_patience_is_over() => return None,
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            if !call.ready(deadline.remaining()) && only_patience_is_over() {
                return None;
            }
            // If the connection was lost, another thread may have sent the request again.
            let mine = {
                let mut sent = self.sent();
                sent.call.take_if(|sent| Arc::ptr_eq(sent, &call))
            };
            drop(call);
            let Some(call) = mine.and_then(Arc::into_inner) else { continue };
            match call.wait(Duration::ZERO) {
                Ok(answer) => return Some(self.decode(answer)),
                // It is unknown whether the request was executed. Changes are numbered, so it is sent again.
                Err(CallError::Lost { .. }) => {}
                Err(error) => return Some(Err(self.failed(error))),
            }
        }
    }

    /// Returns whether the request was sent over a connection other than `lost`, or cannot be sent.
    pub fn is_sent(&self, lost: Option<&Arc<Client>>) -> bool {
        let sent = self.sent();
        let is_lost = |client: &Arc<Client>| lost.is_some_and(|lost| Arc::ptr_eq(lost, client));
        sent.failed.is_some() || sent.client.as_ref().is_some_and(|client| !is_lost(client))
    }

    /// Sends the request over a connection. Does nothing if the request was already sent over that connection, has a
    /// response, cannot be sent, or has reached its deadline.
    ///
    /// # Errors
    /// - [`CallError::Lost`]: the connection is lost. Other errors concern only this request, and are stored as its
    ///   response.
    pub fn send_over(&self, client: &Arc<Client>, deadline: Deadline) -> Result<(), CallError> {
        let message = {
            let mut sent = self.sent();
            let is_there = sent.client.as_ref().is_some_and(|before| Arc::ptr_eq(before, client));
            let is_answered = sent.call.as_ref().is_some_and(|call| call.is_answered());
            if is_there || is_answered || sent.failed.is_some() {
                return Ok(());
            }
            if self.deadline.has_passed() {
                // Otherwise the thread that waits for the response would wait until the request is sent again.
                sent.failed = Some(self.timed_out("the connection was lost before it was answered".into()));
                return Ok(());
            }
            // INV-57: by this flag, a server notices that it has lost acknowledged changes.
            if self.shared.acknowledged.load(Ordering::Acquire) {
                acknowledge(&mut sent.message);
            }
            sent.message.clone()
        };
        // The lock is not held here, because this may wait until responses of another thread leave room.
        let started = client.start(SERVICE, message, deadline.remaining());
        let mut sent = self.sent();
        match started {
            Ok(call) => (sent.client, sent.call) = (Some(client.clone()), Some(Arc::new(call))),
            Err(error @ CallError::Lost { .. }) => return Err(error),
            Err(error) => sent.failed = Some(self.failed(error)),
        }
        Ok(())
    }

    fn sent(&self) -> MutexGuard<'_, InFlightMessage> {
        self.sent.lock()
    }

    fn decode(&self, answer: Message) -> Result<Response, ChannelError> {
        let server = || self.shared.name.clone();
        match decode_answer(answer) {
            Ok(Ok(response)) => {
                // A batch with a refusal may have changed nothing.
                let is_whole = !matches!(&response, Response::Batch(all) if all.iter().any(Result::is_err));
                if self.changes && is_whole {
                    self.shared.acknowledged.store(true, Ordering::Release);
                }
                Ok(response)
            }
            Ok(Err(refusal)) => Err(ChannelError::Refused { server: server(), refusal }),
            Err(error) => {
                let found = format!("something other than an answer: {error}");
                Err(ChannelError::Answer { server: server(), request: self.described.clone(), found })
            }
        }
    }

    pub fn timed_out(&self, reason: String) -> ChannelError {
        let (server, request, timeout) = self.names();
        ChannelError::TimedOut { server, request, timeout, reason }
    }

    pub fn unreachable(&self, reason: String) -> ChannelError {
        let (server, request, _) = self.names();
        ChannelError::Unreachable { server, request, reason }
    }

    pub fn failed(&self, error: CallError) -> ChannelError {
        let (server, request, _) = self.names();
        match error {
            CallError::TooLong { what, length, limit, .. } => {
                ChannelError::TooLarge { server, request, what, found: length as u64, limit: limit as u64 }
            }
            CallError::TimedOut { .. } | CallError::WindowFull { .. } => self.timed_out(error.to_string()),
            // Nothing was executed.
            CallError::Failed { fault, .. } if fault.kind == FaultKind::NoRoom => {
                let refusal = Refusal::new(RefusalKind::Busy, format!("{request}: {fault}"));
                ChannelError::Refused { server, refusal }
            }
            CallError::Failed { fault, .. } => {
                ChannelError::Answer { server, request, found: fault.to_string() }
            }
            other => self.unreachable(other.to_string()),
        }
    }

    fn names(&self) -> (String, String, Duration) {
        (self.shared.name.clone(), self.described.clone(), self.deadline.timeout())
    }
}
