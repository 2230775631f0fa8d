//! What moves messages between workers, and what receives them.

use crate::{Message, Region};
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

    /// Memory of this length that other workers of this machine can read: as (a part of) a message's body, it is not copied on
    /// the way to them. To all others it is sent as any body is. `None` where there is no such worker, or no such memory: use
    /// any other then.
    ///
    /// What another worker receives is the memory itself. It can be used again when that worker has dropped what it received,
    /// so let go of it soon: of what is kept, there are at most 256 bodies or 2 GiB for each pair of workers, and what is sent
    /// beyond is copied. So are bodies of less than 16 KiB, for which that is as fast, and the first ones to a worker that is still
    /// joining.
    fn memory(&self, len: usize) -> Option<Region> {
        let _ = len;
        None
    }

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
