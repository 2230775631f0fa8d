//! Messages between workers.

use bytes::Bytes;

/// A message from one worker to another: a small head, and a body that is sent to the network without being copied.
///
/// The contents are opaque to this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The description of the message, which is copied.
    pub head: Bytes,
    /// The data of the message.
    pub body: Bytes,
}

impl Message {
    /// Creates a message from its two parts.
    pub fn new(head: impl Into<Bytes>, body: impl Into<Bytes>) -> Self {
        Self { head: head.into(), body: body.into() }
    }
}
