//! Messages between workers.

use bytes::Bytes;

/// A message from one worker to another: a small head, and a body that is sent without being copied.
///
/// The contents are opaque to this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// A description of the body, which is copied when it is sent.
    pub head: Bytes,
    /// The data of the message, which is sent without a copy.
    pub body: Bytes,
}

impl Message {
    /// Creates a message from its head and body.
    pub fn new(head: impl Into<Bytes>, body: impl Into<Bytes>) -> Self {
        Self { head: head.into(), body: body.into() }
    }
}
