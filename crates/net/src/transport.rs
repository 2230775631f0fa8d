//! What moves messages between workers, and what receives them.

use crate::{Message, Region};
use bytes::Bytes;
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

/// A message of which a part has come, and the rest is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arriving {
    /// The number of bytes that have come.
    pub received: u64,
    /// The number of bytes of the whole message.
    pub length: u64,
}

/// The numbers of a vector, as this machine has them in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

/// A library that adds up vectors of all workers by itself, in an order of its own, such as MPI.
pub trait NativeSum: Send + Sync {
    /// Its name, for errors.
    fn name(&self) -> &'static str;

    /// Whether it can add up vectors of so many bytes here. Where a sum has failed, workers may disagree, so they ask each other
    /// before each.
    fn is_able(&self, bytes: usize) -> bool;

    /// The sum of the vectors of all workers, which are all of one length and make this call at the same time.
    ///
    /// # Errors
    /// Why there is none on this worker. It is tried for as long as `patience`, and while no worker is known to be lost.
    fn sum(&self, vector: Bytes, number: Number, patience: Duration) -> Result<Bytes, String>;
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
    /// beyond is copied. So are bodies of less than 2 KiB, for which that is as fast, and the first ones to a worker that is still
    /// joining.
    fn memory(&self, len: usize) -> Option<Region> {
        let _ = len;
        None
    }

    /// Whether a message to this worker is there as soon as it is sent, because both share memory: there is nothing to gain by
    /// sending it early.
    fn is_near(&self, worker: usize) -> bool {
        let _ = worker;
        false
    }

    /// Returns the message of this worker of which a part has come, if there is one: the worker has sent it, and the link is slow.
    fn arriving(&self, worker: usize) -> Option<Arriving> {
        let _ = worker;
        None
    }

    /// Says that others may wait so long for what is sent, so that the end of this worker's part waits as long while it is on
    /// its way. The longest counts.
    fn stay(&self, patience: Duration) {
        let _ = patience;
    }

    /// Moves bytes on the calling thread, and returns as soon as something was delivered, after `patience` at the latest.
    ///
    /// Threads that wait for a message call this, so that no other thread has to be woken first. Messages arrive without it,
    /// too, some 50 µs later, or a millisecond where callers have driven just before.
    ///
    /// `is_there` says whether what the caller waits for has come. It is asked when no other thread can deliver any more, so that
    /// nothing is slept away that another thread has delivered a moment ago.
    fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive;

    /// The library that sums vectors by itself, where this transport stands on one.
    fn native_sum(&self) -> Option<&dyn NativeSum> {
        None
    }

    /// Ends this worker's part in order: what it has sent still arrives, and the others learn that it has ended.
    fn close(&self);
}
