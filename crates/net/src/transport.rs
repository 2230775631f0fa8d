//! What moves messages between workers, and what receives them.

use crate::Message;
use std::fmt::Debug;
use std::time::Duration;

/// Takes what a [`Transport`] has received, on whatever thread moves the bytes. Both methods return soon, and don't call
/// the transport.
pub trait Receiver: Send + Sync {
    /// A message has come. Those of one worker come in the order in which it sent them.
    fn deliver(&self, from: usize, message: Message);

    /// A worker can't be reached any more, and why. It is told once for each worker, after everything received from it.
    fn lose(&self, from: usize, reason: String);
}

/// What came of [`Transport::drive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Something was given to the receiver.
    Delivered,
    /// Nothing came in the time given.
    Nothing,
    /// Another thread moves the bytes: wait for the receiver's own signal, and come back in a millisecond.
    Elsewhere,
    /// No thread has to: wait for the receiver's own signal.
    Never,
}

/// Sends messages to other workers, and gives those of others to a [`Receiver`].
///
/// It keeps the order of messages from one worker to another and loses none, as long as both live. The loss of a worker is
/// told to the receiver, and to nobody else.
pub trait Transport: Debug + Send + Sync {
    /// Sends a message without waiting for its receiver: two workers can send each other any amount at once. What is sent to
    /// a worker that is lost, or after [`close`](Self::close), goes nowhere.
    fn send(&self, to: usize, message: Message);

    /// Moves bytes on the calling thread, and returns as soon as something was delivered, after `patience` at the latest.
    ///
    /// Threads that wait for a message call this, so that no other thread has to be woken first. Messages arrive without it,
    /// too, some 50 µs later, or a millisecond where callers have driven just before.
    ///
    /// `is_there` says whether what the caller waits for has come. It is asked when no other thread can deliver any more, so that
    /// nothing is slept away that another thread has delivered a moment ago.
    fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive;

    /// Ends this worker's part in order: what it has sent still arrives, and the others learn that it has ended.
    fn close(&self);
}
