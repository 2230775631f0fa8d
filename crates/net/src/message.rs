//! Messages between workers.

use bytes::Bytes;

/// A message from one worker to another: a small head, and a body that is not copied on the way to the
/// network.
///
/// Their content is opaque to this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The description of the message.
    pub head: Bytes,
    /// The data of the message.
    pub body: Bytes,
}

impl Message {
    /// Creates a message of these two parts.
    pub fn new(head: impl Into<Bytes>, body: impl Into<Bytes>) -> Self {
        Self { head: head.into(), body: body.into() }
    }
}
