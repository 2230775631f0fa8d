//! The interfaces of sending and receiving messages.

use crate::{Message, Region};
use bytes::Bytes;
use std::fmt::Debug;
use std::time::Duration;

/// A receiver of messages from a [`Transport`], on any thread that moves bytes. Both methods must return
/// soon, and must not call the transport.
pub trait Receiver: Send + Sync {
    /// Delivers a message. Messages of one worker are delivered in the order in which it has sent them.
    fn deliver(&self, from: usize, message: Message);

    /// Reports that a worker is disconnected, with the reason. It is called once for each worker, after
    /// everything received from it.
    fn lose(&self, from: usize, reason: String);
}

/// The result of [`Transport::drive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Something was delivered to the receiver.
    Delivered,
    /// The time has passed without a delivery.
    Nothing,
    /// Another thread moves the bytes: wait for the receiver's own signal, and retry after a millisecond.
    Elsewhere,
    /// No call is needed: wait for the receiver's own signal.
    Never,
}

/// A message that was received in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arriving {
    /// The number of bytes received.
    pub received: u64,
    /// The number of bytes of the complete message.
    pub length: u64,
}

/// The type of a vector's numbers, in the byte order of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

/// A library such as MPI that sums vectors of all workers, in its own order.
pub trait NativeSum: Send + Sync {
    /// Returns the name of the library, for errors.
    fn name(&self) -> &'static str;

    /// Whether it can sum vectors of this size here. Workers may disagree after a failed sum, so they compare
    /// this before each.
    fn is_able(&self, bytes: usize) -> bool;

    /// Returns the sum of the vectors of all workers. All have the same length, and all workers make this
    /// call at the same time.
    ///
    /// # Errors
    /// Returns the reason if the sum fails on this worker: `patience` has passed, or a worker is known to be
    /// disconnected.
    fn sum(&self, vector: Bytes, number: Number, patience: Duration) -> Result<Bytes, String>;
}

/// A transport that sends messages to other workers, and delivers theirs to a [`Receiver`].
///
/// Messages from one worker to another are delivered in order. None is lost while both are connected. A
/// disconnect is reported only to the receiver.
pub trait Transport: Debug + Send + Sync {
    /// Sends a message without waiting for its receiver: two workers can send each other any amount at once.
    /// Messages to a disconnected worker, or after [`close`](Self::close), are discarded.
    fn send(&self, to: usize, message: Message);

    /// Returns memory of this length that other workers of this machine can read. A message's body, or a part
    /// of one, in this memory is not copied on the way to them. To all other workers it is sent like any
    /// body. `None` if there is no such worker or no such memory.
    ///
    /// Another worker receives the memory itself. It can be reused when that worker has dropped what it
    /// received, so release it soon. At most 256 bodies or 2 GiB are shared at once by each pair of workers,
    /// and others are copied. Bodies of less than 2 KiB are also copied, which is as fast, as are the first
    /// ones to a worker that is still joining.
    fn memory(&self, len: usize) -> Option<Region> {
        let _ = len;
        None
    }

    /// Whether a message to this worker arrives as soon as it is sent, because both share memory. There is no
    /// benefit in sending it early.
    fn is_near(&self, worker: usize) -> bool {
        let _ = worker;
        false
    }

    /// Returns the message of this worker that was received in part, if there is one. The worker has sent it,
    /// and the link is slow.
    fn arriving(&self, worker: usize) -> Option<Arriving> {
        let _ = worker;
        None
    }

    /// Extends the wait for unsent data when this transport closes, because other workers may wait this long
    /// for it. The longest value counts.
    fn stay(&self, patience: Duration) {
        let _ = patience;
    }

    /// Moves bytes on the calling thread. Returns as soon as something was delivered, or after `patience`.
    ///
    /// Threads that wait for a message call this, so that no other thread has to be woken first. Without it
    /// messages arrive some 50 µs later, or a millisecond later after recent calls.
    ///
    /// `is_there` returns whether the caller already has what it waits for. It is called when no other thread
    /// can deliver any more, so that a delivery just before is not missed.
    fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive;

    /// Returns the library that sums vectors, if this transport uses one.
    fn native_sum(&self) -> Option<&dyn NativeSum> {
        None
    }

    /// Closes the transport gracefully: everything that it has sent still arrives, and the others see that
    /// this worker has exited.
    fn close(&self);
}
