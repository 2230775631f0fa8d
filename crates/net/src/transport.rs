//! The interfaces of sending and receiving messages.

// - **INV-29** The loss of a worker is reported once, after everything received from it. Every transport has to
//   keep this. Tests: `net/tests/it/conformance.rs`, `net/tests/it/faults.rs`, `mpi/src/links.rs`.

use crate::{Message, Region};
use bytes::Bytes;
use std::fmt::Debug;
use std::time::Duration;

/// A receiver of messages from a [`Transport`]. Its methods are called on the thread that polls or sends, which may be
/// any thread. Both methods must return quickly, and must not call the transport.
pub trait Receiver: Send + Sync {
    /// Delivers a message. Messages of one worker are delivered in the order in which it has sent them.
    fn deliver(&self, from: usize, message: Message);

    /// Reports that a worker is disconnected, with the reason. It is called once for each worker, after everything
    /// received from it was delivered.
    fn mark_lost(&self, from: usize, reason: String);
}

/// The result of [`Transport::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// Messages or disconnects were delivered to the receiver, by this call or just before.
    Delivered,
    /// The call has delivered nothing: `patience` has passed, or no other worker is connected any more.
    Nothing,
    /// Another thread is polling. Wait for the receiver's own signal, and retry after a millisecond.
    Elsewhere,
    /// No call is needed. Wait for the receiver's own signal.
    Never,
}

/// A message that was received in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialMessage {
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

/// A library, such as MPI, that computes sums of vectors over all workers, in its own order.
pub trait NativeSum: Send + Sync {
    /// Returns the name of the library, for errors.
    fn name(&self) -> &'static str;

    /// Returns whether the library can sum vectors of `bytes` bytes on this worker. After a failed sum, workers may
    /// disagree, so they compare their results before each sum.
    fn supports(&self, bytes: usize) -> bool;

    /// Returns the sum of the vectors of all workers. All workers must make this call at the same time, with vectors of
    /// the same length. Waits at most `patience`.
    ///
    /// # Errors
    /// Returns the reason if the sum fails on this worker, for example because `patience` has passed or a worker is
    /// known to be disconnected.
    fn sum(&self, vector: Bytes, number: Number, patience: Duration) -> Result<Bytes, String>;
}

/// A transport that sends messages to other workers, and delivers their messages to a [`Receiver`].
///
/// Messages from one worker to another are delivered in order. No message is lost while both are connected. A
/// disconnect is reported only to the receiver.
pub trait Transport: Debug + Send + Sync {
    /// Sends a message without waiting for its receiver. Two workers can send each other any amount of data at the same
    /// time. Messages to a disconnected worker, or after [`close`](Self::close), are discarded.
    fn send(&self, to: usize, message: Message);

    /// Returns memory of `len` bytes that other workers on this machine can read. If the body of a message is this
    /// memory or a part of it, the body is not copied when the message is sent to these workers. To all other workers
    /// it is sent like any other body. Returns `None` if no other worker shares memory with this one, or if no more
    /// memory can be allocated.
    ///
    /// These workers read the memory itself, which can be reused after they have dropped the body, so received bodies
    /// should be dropped soon. At most 256 bodies, with at most 2 GiB in total, are shared with each of these workers
    /// at a time. Further bodies are copied; a single body of any size is shared. Bodies of less than 2 KiB are also
    /// copied, which is as fast, and so are the first bodies to a worker that is still joining.
    fn memory(&self, len: usize) -> Option<Region> {
        let _ = len;
        None
    }

    /// Returns whether a message to `worker` arrives as soon as it is sent, because `worker` and this worker share
    /// memory. If so, there is no benefit in sending a message early.
    fn is_near(&self, worker: usize) -> bool {
        let _ = worker;
        false
    }

    /// Returns whether messages to `worker` may leave this machine, so that a network card and the memory of another
    /// machine are on their way. The default is `false`.
    fn leaves_machine(&self, worker: usize) -> bool {
        let _ = worker;
        false
    }

    /// Returns the progress of a message from `worker` that was received in part, if there is one. In this case the
    /// worker has sent the message, but the link is slow.
    fn partial_message(&self, worker: usize) -> Option<PartialMessage> {
        let _ = worker;
        None
    }

    /// Extends the time for which this transport waits for unsent data when it closes, because other workers may wait
    /// this long for the data. The longest of all given times applies.
    fn extend_shutdown_wait(&self, patience: Duration) {
        let _ = patience;
    }

    /// Polls the sockets on the calling thread. Returns as soon as a message was delivered, or after `patience`.
    ///
    /// A thread that waits for a message calls this, so that no other thread must be woken first. Otherwise messages
    /// arrive about 50 µs later, or a millisecond later if another thread has polled recently.
    ///
    /// `is_there` returns whether the message for which the caller waits has already been delivered. It is called when
    /// no other thread can deliver messages, so that a message that was delivered just before is not missed.
    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome;

    /// Returns the library that computes sums of vectors, if this transport uses one.
    fn native_sum(&self) -> Option<&dyn NativeSum> {
        None
    }

    /// Closes the transport gracefully: everything that it has sent still arrives, and the others see that
    /// this worker has exited.
    fn close(&self);
}
