//! What answers calls.

use crate::fault::{Fault, FaultKind};
use crate::frame::Frame;
use crate::room::Held;
use distribute_cluster::Task;
use distribute_net::{Endpoint, Message, Region};
use std::fmt;
use std::sync::{Arc, Weak};

/// What answers the calls of one name.
///
/// ```
/// use distribute_server::{Call, Reply, Service};
///
/// struct Length;
///
/// impl Service for Length {
///     fn call(&self, call: Call, reply: Reply) {
///         reply.answer(call.message.body.len().to_le_bytes().to_vec(), "");
///     }
/// }
/// ```
pub trait Service: Send + Sync {
    /// Answers a call, now or later, on this thread or another, which the reply can be moved to.
    ///
    /// Each connection has a thread, on which its calls come one after the other: those behind wait until this returns. What
    /// takes long belongs on a thread of the service's own. A reply that is dropped, or a panic, answers the call with an
    /// error, and the server goes on.
    fn call(&self, call: Call, reply: Reply);
}

impl<F: Fn(Call, Reply) + Send + Sync> Service for F {
    fn call(&self, call: Call, reply: Reply) {
        self(call, reply);
    }
}

/// What is asked of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The task that asks.
    pub caller: Task,
    /// What it asks.
    pub message: Message,
}

/// What answers one call. It may be kept, and used on any thread; where the caller is gone, nothing comes of it.
pub struct Reply {
    id: u64,
    /// The name of the service, and the task that it is part of.
    service: Arc<str>,
    me: Arc<Task>,
    to: Weak<Endpoint>,
    /// The room that the call takes, until it is answered.
    held: Option<Held>,
}

impl Reply {
    pub(crate) fn new(id: u64, service: Arc<str>, me: Arc<Task>, to: Weak<Endpoint>, held: Held) -> Self {
        Self { id, service, me, to, held: Some(held) }
    }

    /// Answers the call.
    pub fn answer(self, head: impl Into<bytes::Bytes>, body: impl Into<bytes::Bytes>) {
        let id = self.id;
        self.send(Frame::Answer(id, Message::new(head, body)));
    }

    /// Memory of this length that the caller can read, where both share memory: what is in it is not copied once more on the way, as the
    /// body of this answer.
    pub fn memory(&self, len: usize) -> Option<Region> {
        self.to.upgrade()?.memory(len)
    }

    /// Takes back what the caller has read of such memory by now, and let go of: for who waits for bodies of earlier answers to be dropped.
    pub fn settle(&self) {
        if let Some(endpoint) = self.to.upgrade() {
            endpoint.settle();
        }
    }

    /// Answers with an error: what is wrong, and what to do.
    pub fn fail(self, text: impl Into<String>) {
        self.fault(Fault::new(FaultKind::Failed, text));
    }

    pub(crate) fn fault(self, fault: Fault) {
        let id = self.id;
        self.send(Frame::Failed(id, fault));
    }

    /// Whether the caller is still connected.
    pub fn is_wanted(&self) -> bool {
        self.to.strong_count() > 0
    }

    fn send(mut self, frame: Frame) {
        self.finish(frame);
    }

    fn finish(&mut self, frame: Frame) {
        // Before the answer, which lets the caller go on with the next call.
        self.held = None;
        if let Some(endpoint) = self.to.upgrade() {
            endpoint.send(frame.encode());
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.held.is_none() {
            return;
        }
        let (service, me) = (&self.service, &self.me);
        let fault = if std::thread::panicking() {
            Fault::new(FaultKind::Panicked, format!("{service} panicked: see the log of {me}"))
        } else {
            Fault::new(FaultKind::Dropped, format!("{service} of {me} let go of the call without an answer"))
        };
        self.finish(Frame::Failed(self.id, fault));
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(call {} of {})", self.id, self.service)
    }
}
