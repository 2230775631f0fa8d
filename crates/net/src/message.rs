//! What workers send each other.

use bytes::Bytes;

/// A message from one worker to another: a small head, and data that is never copied on the way to the network.
///
/// What is in them is the business of those who send it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What the message is.
    pub head: Bytes,
    /// Its data.
    pub body: Bytes,
}

impl Message {
    /// A message of these two parts.
    pub fn new(head: impl Into<Bytes>, body: impl Into<Bytes>) -> Self {
        Self { head: head.into(), body: body.into() }
    }
}
