//! One connection of a server: its calls, one after the other.

use crate::fault::{Fault, FaultKind};
use crate::frame::Frame;
use crate::service::{Call, Reply, Service};
use distribute_cluster::{Deadline, Task};
use distribute_log::heard;
use distribute_net::{Drive, Endpoint, Message, Receiver};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The services of a server by name.
pub(crate) type Services = BTreeMap<Arc<str>, Arc<dyn Service>>;

/// How long the thread looks for the next call by itself before it sleeps until it is woken: callers that come again at once
/// are answered sooner.
const EAGER: Duration = Duration::from_millis(2);

/// How long it sleeps at most.
const SLEEP: Duration = Duration::from_millis(500);

/// What has come over a connection and is not yet answered.
#[derive(Debug)]
pub(crate) struct Inbox {
    come: Mutex<Come>,
    changed: Condvar,
    /// How many calls have no answer yet, and how many may have none.
    open: Arc<AtomicUsize>,
    most: usize,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Come {
    calls: VecDeque<Message>,
    /// Why nothing more comes.
    over: Option<String>,
}

impl Inbox {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            come: Mutex::default(),
            changed: Condvar::new(),
            open: Arc::default(),
            most,
            stopped: AtomicBool::new(false),
        })
    }

    /// Lets the thread of the connection end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _come = self.lock();
        self.changed.notify_all();
    }

    fn is_there(&self) -> bool {
        let come = self.lock();
        !come.calls.is_empty() || come.over.is_some()
    }

    /// The next call; `Err` with the reason if there will be none.
    fn next(&self, endpoint: &Endpoint) -> Result<Message, String> {
        let eager = Deadline::after(EAGER);
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return Err("the server stops".to_owned());
            }
            let mut come = self.lock();
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
                come = self.lock();
            }
            if come.calls.is_empty() && come.over.is_none() && !self.stopped.load(Ordering::Acquire) {
                drop(self.changed.wait_timeout(come, SLEEP));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Come> {
        self.come.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Receiver for Inbox {
    fn deliver(&self, _from: usize, message: Message) {
        let mut come = self.lock();
        if come.over.is_some() {
            return;
        }
        // It is one of the job's, and yet its calls are not kept without limit.
        if self.open.fetch_add(1, Ordering::AcqRel) >= self.most {
            come.over = Some(format!("it has more than {} calls without an answer", self.most));
        } else {
            come.calls.push_back(message);
        }
        self.changed.notify_all();
    }

    fn lose(&self, _from: usize, reason: String) {
        self.lock().over.get_or_insert(reason);
        self.changed.notify_all();
    }
}

/// Answers the calls of a connection until it or the server ends.
pub(crate) fn serve(endpoint: &Arc<Endpoint>, inbox: &Inbox, me: &Arc<Task>, services: &Services) {
    let caller = endpoint.peer().clone();
    let reason = loop {
        let message = match inbox.next(endpoint) {
            Ok(message) => message,
            Err(reason) => break reason,
        };
        let Ok(Frame::Call { id, service, message }) = Frame::decode(message) else {
            break "what it sent is no call".to_owned();
        };
        let reply =
            |name: Arc<str>| Reply::new(id, name, me.clone(), Arc::downgrade(endpoint), inbox.open.clone());
        let Some((name, service)) = services.get_key_value(&*service) else {
            let known: Vec<_> = services.keys().map(|name| &**name).collect();
            let text = format!("{me} has no service {service:?}, it has {}", known.join(", "));
            reply(service.into()).fault(Fault::new(FaultKind::NoSuchService, text));
            continue;
        };
        let (call, reply) = (Call { caller: caller.clone(), message }, reply(name.clone()));
        // A reply that is dropped while the panic unwinds tells the caller.
        if catch_unwind(AssertUnwindSafe(|| service.call(call, reply))).is_err() {
            heard(|| tracing::error!(%caller, "{name} of {me} panicked in a call; the server goes on"));
        }
    };
    tracing::debug!(%caller, reason, "a connection is over");
    endpoint.close();
}
