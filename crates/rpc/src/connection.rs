//! One connection to a server. Its calls are executed one after another.

use crate::fault::{Fault, FaultKind};
use crate::frame::Frame;
use crate::memory_budget::{CallPermit, NoRoom, OpenCalls};
use crate::service::{Call, Reply, Service};
use distribute_cluster::{Deadline, Task};
use distribute_log::warn_or_stderr;
use distribute_net::{Endpoint, Message, PollOutcome, Receiver};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The services of a server by name.
pub(crate) type Services = BTreeMap<Arc<str>, Arc<dyn Service>>;

/// The time for which a connection's thread polls for the next call before it sleeps. This shortens the answer time for
/// callers that call again immediately.
const POLL_TIME: Duration = Duration::from_millis(2);

/// The maximum time for which a connection's thread sleeps before it checks again for calls and for the server's end.
const SLEEP: Duration = Duration::from_millis(500);

/// The reason why a connection accepts no more calls.
#[derive(Debug)]
enum Closing {
    /// The server stops.
    Stopped,
    /// The connection was closed or lost, for the given reason.
    Lost(String),
    /// Something other than a call was received.
    NoCall,
    /// More calls than this number were received without an answer.
    TooMany(usize),
}

impl Closing {
    /// Returns whether the caller did not follow the protocol.
    fn is_violation(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Stopped => false,
            Self::Lost(_) => endpoint.is_undecodable(),
            Self::NoCall | Self::TooMany(_) => true,
        }
    }
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("the server stops"),
            Self::Lost(reason) => f.write_str(reason),
            Self::NoCall => f.write_str("it sent something other than a call"),
            Self::TooMany(most) => write!(f, "it has more calls without an answer than {most}"),
        }
    }
}

/// A queue of the calls that were received over a connection, which the connection's thread executes in sequence.
#[derive(Debug)]
pub(crate) struct Inbox {
    received: Mutex<ReceivedCalls>,
    changed: Condvar,
    /// The number and size of the unanswered calls.
    open: Arc<OpenCalls>,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct ReceivedCalls {
    calls: VecDeque<(IncomingCall, CallPermit)>,
    /// The reason why the connection accepts no more calls, if there is one.
    over: Option<Closing>,
}

/// An entry of the queue of received calls.
#[derive(Debug)]
enum IncomingCall {
    Call(Message),
    /// A call for which there was not enough memory: its id, and the error to return.
    Refused(u64, Fault),
}

impl Inbox {
    pub fn new(open: Arc<OpenCalls>) -> Arc<Self> {
        Arc::new(Self {
            received: Mutex::default(),
            changed: Condvar::new(),
            open,
            stopped: AtomicBool::new(false),
        })
    }

    /// Makes the connection's thread exit before the next call.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _come = self.received.lock();
        self.changed.notify_all();
    }

    fn has_call(&self) -> bool {
        let received = self.received.lock();
        !received.calls.is_empty() || received.over.is_some()
    }

    /// Discards the calls in the queue, which are not answered, and accepts no more.
    fn close(&self) {
        let mut received = self.received.lock();
        received.over.get_or_insert_with(|| Closing::Lost("the connection is closed".to_owned()));
        let calls = std::mem::take(&mut received.calls);
        drop(received);
        // The lock is released first, because calls may hold large buffers.
        drop(calls);
    }

    /// Waits for the next call. Returns an error with the reason if no more calls follow.
    fn next(&self, endpoint: &Endpoint) -> Result<(IncomingCall, CallPermit), Closing> {
        let eager = Deadline::after(POLL_TIME);
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return Err(Closing::Stopped);
            }
            let mut received = self.received.lock();
            if let Some(call) = received.calls.pop_front() {
                return Ok(call);
            }
            if let Some(reason) = received.over.take() {
                return Err(reason);
            }
            if !eager.has_passed() {
                drop(received);
                if endpoint.poll(eager.remaining(), &|| self.has_call()) != PollOutcome::Elsewhere {
                    continue;
                }
                received = self.received.lock();
            }
            if received.calls.is_empty() && received.over.is_none() && !self.stopped.load(Ordering::Acquire) {
                self.changed.wait_for(&mut received, SLEEP);
            }
        }
    }
}

impl Inbox {
    /// Returns the entry for a call that exceeds the limit described by `full`. The data of the call is dropped, and
    /// the call is answered with an error when its turn comes. Returns an error with the reason if the connection must
    /// be closed instead.
    fn refuse(&self, full: &NoRoom, message: Message) -> Result<(IncomingCall, CallPermit), Closing> {
        let too_many = |_| Closing::TooMany(self.open.max());
        let NoRoom::Bytes { own, taken, max } = *full else { return Err(too_many(NoRoom::Calls)) };
        let bytes = message.head.len() + message.body.len();
        let Ok(Frame::Call { id, .. }) = Frame::decode(message) else { return Err(Closing::NoCall) };
        let text = format!(
            "there is no memory for a call of {bytes} bytes now: those that wait for answers take {taken} \
             of {max} bytes, those of this caller {own}, and no caller with several calls may take more than \
             it leaves for others; call again after they have been answered"
        );
        let permit = self.open.enter_refused().map_err(too_many)?;
        Ok((IncomingCall::Refused(id, Fault::new(FaultKind::NoRoom, text)), permit))
    }
}

impl Receiver for Inbox {
    fn deliver(&self, _from: usize, message: Message) {
        let mut received = self.received.lock();
        if received.over.is_some() {
            return;
        }
        // The sender belongs to the job, but its calls still need a limit.
        match self.open.enter(message.head.len() + message.body.len()) {
            Ok(permit) => received.calls.push_back((IncomingCall::Call(message), permit)),
            Err(full) => match self.refuse(&full, message) {
                Ok(refused) => received.calls.push_back(refused),
                Err(reason) => received.over = Some(reason),
            },
        }
        self.changed.notify_all();
    }

    fn mark_lost(&self, _from: usize, reason: String) {
        self.received.lock().over.get_or_insert(Closing::Lost(reason));
        self.changed.notify_all();
    }
}

/// Answers the calls of a connection until the connection or the server ends, and then closes the connection. Returns a
/// message for the server's log if the caller did not follow the protocol.
pub(crate) fn serve(
    endpoint: &Arc<Endpoint>,
    inbox: &Inbox,
    me: &Arc<Task>,
    services: &Services,
) -> Option<String> {
    let caller = endpoint.peer().clone();
    let reason = loop {
        let (arrived, permit) = match inbox.next(endpoint) {
            Ok(arrived) => arrived,
            Err(reason) => break reason,
        };
        let reply = |id, name: Arc<str>| Reply::new(id, name, me.clone(), Arc::downgrade(endpoint), permit);
        let message = match arrived {
            IncomingCall::Call(message) => message,
            IncomingCall::Refused(id, fault) => {
                reply(id, "".into()).fault(fault);
                continue;
            }
        };
        let Ok(Frame::Call { id, service, message }) = Frame::decode(message) else {
            break Closing::NoCall;
        };
        let Some((name, service)) = services.get_key_value(&*service) else {
            let known: Vec<_> = services.keys().map(|name| &**name).collect();
            let text = format!("{me} has no service {service:?}, it has {}", known.join(", "));
            reply(id, service.into()).fault(Fault::new(FaultKind::NoSuchService, text));
            continue;
        };
        let (call, reply) = (Call { caller: caller.clone(), message }, reply(id, name.clone()));
        // The panic drops the reply, which notifies the caller.
        if catch_unwind(AssertUnwindSafe(|| service.call(call, reply))).is_err() {
            warn_or_stderr(
                || tracing::error!(%caller, "{name} of {me} panicked in a call; the server continues"),
            );
        }
    };
    tracing::debug!(%caller, %reason, "a connection was closed");
    inbox.close();
    endpoint.close();
    reason.is_violation(endpoint).then(|| format!("{me} has closed the connection of {caller}: {reason}"))
}
