//! One connection of a server, whose calls are executed in sequence.

use crate::fault::{Fault, FaultKind};
use crate::frame::Frame;
use crate::room::{Held, NoRoom, OpenCalls};
use crate::service::{Call, Reply, Service};
use distribute_cluster::{Deadline, Task};
use distribute_log::heard;
use distribute_net::{Drive, Endpoint, Message, Receiver};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The services of a server by name.
pub(crate) type Services = BTreeMap<Arc<str>, Arc<dyn Service>>;

/// The time for which the thread polls for the next call before it sleeps. Callers that call again at once
/// are answered sooner.
const EAGER: Duration = Duration::from_millis(2);

/// The reason to close a connection that sends anything except calls.
const NO_CALL: &str = "what it sent is no call";

/// The maximum time for which the thread sleeps.
const SLEEP: Duration = Duration::from_millis(500);

/// The calls that were received over a connection and are not answered yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    come: Mutex<Come>,
    changed: Condvar,
    /// The room of the calls without an answer.
    open: Arc<OpenCalls>,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Come {
    calls: VecDeque<(Arrived, Held)>,
    /// The reason that no more calls follow.
    over: Option<String>,
}

/// A received call.
#[derive(Debug)]
enum Arrived {
    Call(Message),
    /// A call without room: its number and the error to answer.
    Refused(u64, Fault),
}

impl Inbox {
    pub fn new(open: Arc<OpenCalls>) -> Arc<Self> {
        Arc::new(Self {
            come: Mutex::default(),
            changed: Condvar::new(),
            open,
            stopped: AtomicBool::new(false),
        })
    }

    /// Makes the thread of the connection exit.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _come = self.come.lock();
        self.changed.notify_all();
    }

    fn is_there(&self) -> bool {
        let come = self.come.lock();
        !come.calls.is_empty() || come.over.is_some()
    }

    /// Discards the received calls, which are not answered.
    fn close(&self) {
        let mut come = self.come.lock();
        come.over.get_or_insert("the connection is over".to_owned());
        let calls = std::mem::take(&mut come.calls);
        drop(come);
        // The lock is released first, because calls may hold large buffers.
        drop(calls);
    }

    /// Returns the next call, or the reason that there will be none.
    fn next(&self, endpoint: &Endpoint) -> Result<(Arrived, Held), String> {
        let eager = Deadline::after(EAGER);
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return Err("the server stops".to_owned());
            }
            let mut come = self.come.lock();
            if let Some(call) = come.calls.pop_front() {
                return Ok(call);
            }
            if let Some(reason) = come.over.take() {
                return Err(reason);
            }
            if !eager.has_passed() {
                drop(come);
                if endpoint.drive(eager.remaining(), &|| self.is_there()) != Drive::Elsewhere {
                    continue;
                }
                come = self.come.lock();
            }
            if come.calls.is_empty() && come.over.is_none() && !self.stopped.load(Ordering::Acquire) {
                self.changed.wait_for(&mut come, SLEEP);
            }
        }
    }
}

impl Inbox {
    /// Returns a call without room, to be refused after the earlier ones were answered. Returns a reason if
    /// the connection has to be closed.
    fn refuse(&self, full: &NoRoom, message: Message) -> Result<(Arrived, Held), String> {
        let too_many = |_| format!("it has more than {} calls without an answer", self.open.most());
        let NoRoom::Bytes { own, taken, most } = *full else { return Err(too_many(NoRoom::Calls)) };
        let bytes = message.head.len() + message.body.len();
        let Ok(Frame::Call { id, .. }) = Frame::decode(message) else { return Err(NO_CALL.to_owned()) };
        let text = format!(
            "there is no memory for a call of {bytes} bytes now: those that wait for answers take {taken} of {most} bytes, those of \
             this caller {own}, and no caller may take more than are left for others; call again when they are answered"
        );
        let held = self.open.enter_refused().map_err(too_many)?;
        Ok((Arrived::Refused(id, Fault::new(FaultKind::NoRoom, text)), held))
    }
}

impl Receiver for Inbox {
    fn deliver(&self, _from: usize, message: Message) {
        let mut come = self.come.lock();
        if come.over.is_some() {
            return;
        }
        // The sender belongs to the job, but its calls still need a limit.
        match self.open.enter(message.head.len() + message.body.len()) {
            Ok(held) => come.calls.push_back((Arrived::Call(message), held)),
            Err(full) => match self.refuse(&full, message) {
                Ok(refused) => come.calls.push_back(refused),
                Err(reason) => come.over = Some(reason),
            },
        }
        self.changed.notify_all();
    }

    fn lose(&self, _from: usize, reason: String) {
        self.come.lock().over.get_or_insert(reason);
        self.changed.notify_all();
    }
}

/// Answers the calls of a connection until it or the server ends.
pub(crate) fn serve(endpoint: &Arc<Endpoint>, inbox: &Inbox, me: &Arc<Task>, services: &Services) {
    let caller = endpoint.peer().clone();
    let reason = loop {
        let (arrived, held) = match inbox.next(endpoint) {
            Ok(arrived) => arrived,
            Err(reason) => break reason,
        };
        let reply = |id, name: Arc<str>| Reply::new(id, name, me.clone(), Arc::downgrade(endpoint), held);
        let message = match arrived {
            Arrived::Call(message) => message,
            Arrived::Refused(id, fault) => {
                reply(id, "".into()).fault(fault);
                continue;
            }
        };
        let Ok(Frame::Call { id, service, message }) = Frame::decode(message) else {
            break NO_CALL.to_owned();
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
            heard(|| tracing::error!(%caller, "{name} of {me} panicked in a call; the server goes on"));
        }
    };
    tracing::debug!(%caller, reason, "a connection is over");
    inbox.close();
    endpoint.close();
}
