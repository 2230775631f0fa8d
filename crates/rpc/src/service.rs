//! [`Service`]: a handler of calls to a server.

use crate::fault::{Fault, FaultKind};
use crate::frame::Frame;
use crate::memory_budget::CallPermit;
use distribute_cluster::Task;
use distribute_net::{Endpoint, Message, Region};
use std::fmt;
use std::sync::{Arc, Weak};

/// A handler of the calls to one service name.
///
/// ```
/// use distribute_rpc::{Call, Reply, Service};
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
    /// Answers a call, now or later. The reply can be moved to another thread.
    ///
    /// Each connection has a thread that processes its calls in sequence, so later calls wait until this method
    /// returns. Long work must therefore run on another thread. If the reply is dropped or this method panics, the call
    /// is answered with an error, and the server continues.
    fn call(&self, call: Call, reply: Reply);
}

impl<F: Fn(Call, Reply) + Send + Sync> Service for F {
    fn call(&self, call: Call, reply: Reply) {
        self(call, reply);
    }
}

/// A call to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The task that calls.
    pub caller: Task,
    /// The request to the service.
    pub message: Message,
}

/// The handle for answering one call. It can be stored, and used on any thread. If the caller has disconnected, answers
/// have no effect.
pub struct Reply {
    id: u64,
    /// The name of the service, for errors.
    service: Arc<str>,
    me: Arc<Task>,
    to: Weak<Endpoint>,
    /// The space reserved for the call, until it is answered.
    permit: Option<CallPermit>,
}

impl Reply {
    pub(crate) fn new(
        id: u64,
        service: Arc<str>,
        me: Arc<Task>,
        to: Weak<Endpoint>,
        permit: CallPermit,
    ) -> Self {
        Self { id, service, me, to, permit: Some(permit) }
    }

    /// Answers the call.
    pub fn answer(self, head: impl Into<bytes::Bytes>, body: impl Into<bytes::Bytes>) {
        let id = self.id;
        self.send(Frame::Answer(id, Message::new(head, body)));
    }

    /// Returns shared memory of `len` bytes. If it is the body of this answer, the caller reads it without a copy.
    /// Returns `None` if this process and the caller do not share memory, if no more memory can be allocated, or if the
    /// caller has disconnected.
    pub fn memory(&self, len: usize) -> Option<Region> {
        self.to.upgrade()?.memory(len)
    }

    /// Reclaims the memory of earlier answers that the caller has read and released. This also happens with each
    /// heartbeat. Call this in a service that waits for the bodies of its earlier answers to be dropped.
    pub fn reclaim(&self) {
        if let Some(endpoint) = self.to.upgrade() {
            endpoint.reclaim();
        }
    }

    /// Answers with an error. The text should describe the problem and a remedy.
    pub fn fail(self, text: impl Into<String>) {
        self.fault(Fault::new(FaultKind::Failed, text));
    }

    pub(crate) fn fault(self, fault: Fault) {
        let id = self.id;
        self.send(Frame::Failed(id, fault));
    }

    /// Returns whether the caller is still connected.
    pub fn is_connected(&self) -> bool {
        self.to.strong_count() > 0
    }

    fn send(mut self, frame: Frame) {
        self.finish(frame);
    }

    fn finish(&mut self, frame: Frame) {
        // The room is freed before the answer, which permits the caller's next call.
        self.permit = None;
        if let Some(endpoint) = self.to.upgrade() {
            endpoint.send(frame.encode());
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.permit.is_none() {
            return;
        }
        let (service, me) = (&self.service, &self.me);
        let fault = if std::thread::panicking() {
            Fault::new(FaultKind::Panicked, format!("{service} panicked: see the log of {me}"))
        } else {
            Fault::new(FaultKind::Dropped, format!("{service} of {me} dropped the call without an answer"))
        };
        self.finish(Frame::Failed(self.id, fault));
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(call {} of {})", self.id, self.service)
    }
}
