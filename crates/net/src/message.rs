//! Messages between workers.

use bytes::Bytes;

/// A message from one worker to another: a small head, and a body that is copied as rarely as possible.
///
/// The contents are opaque to this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// A description of the body, which is copied when it is sent.
    pub head: Bytes,
    /// The data of the message. It is sent without a copy, except over TLS and, unless it is in a
    /// [`Region`](crate::Region), through shared memory.
    pub body: Bytes,
}

impl Message {
    /// Creates a message from its head and body.
    pub fn new(head: impl Into<Bytes>, body: impl Into<Bytes>) -> Self {
        Self { head: head.into(), body: body.into() }
    }
}
