//! The interfaces by which workers send and receive messages.

// - **INV-29** The loss of a worker is reported once, after everything received from it. Every transport has to
//   keep this. Tests: `net/tests/it/conformance.rs`, `net/tests/it/faults.rs`, `mpi/src/links.rs`.

use crate::{Message, Region};
use bytes::Bytes;
use std::fmt::Debug;
use std::time::Duration;

/// A receiver of messages from a [`Transport`]. Any thread that polls or sends may call its methods. They must return
/// quickly, and must not call the transport.
pub trait Receiver: Send + Sync {
    /// Delivers a message. Messages of one worker are delivered in the order in which it has sent them.
    fn deliver(&self, from: usize, message: Message);

    /// Reports that a worker is disconnected, with the reason. This is called once for each disconnected worker, after
    /// everything received from that worker was delivered.
    fn mark_lost(&self, from: usize, reason: String);
}

/// The result of [`Transport::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// Messages or disconnects were delivered to the receiver, by this call or just before.
    Delivered,
    /// The call has delivered nothing, because `patience` has passed or no other worker is connected any more.
    Nothing,
    /// Another thread is polling. Wait for the receiver's own signal, and retry after a millisecond.
    Elsewhere,
    /// Polling is never needed. Wait for the receiver's own signal.
    Never,
}

/// A message that was received in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialMessage {
    /// The number of bytes received so far.
    pub received: u64,
    /// The number of bytes of the complete message.
    pub length: u64,
}

/// The type of the numbers in a vector. Their bytes are in this machine's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

/// A library, such as MPI, that sums vectors over all workers, in an order of its own.
pub trait NativeSum: Send + Sync {
    /// Returns the name of the library, for error messages.
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
    /// Sends a message without waiting until it is received. Two workers can send each other any amount of data at the
    /// same time. Messages to a disconnected worker are discarded, as are all messages after [`close`](Self::close).
    fn send(&self, to: usize, message: Message);

    /// Returns memory of `len` bytes that other workers on this machine can read. If the body of a message is this
    /// memory or a part of it, sending the message to these workers does not copy the body. To all other workers it is
    /// sent like any other body. Returns `None` if no other worker shares memory with this one, or if no more memory
    /// can be allocated.
    ///
    /// The memory can be reused only after its receivers have dropped the body, so received bodies should be dropped
    /// soon. At most 256 bodies, with at most 2 GiB in total, are shared with one worker at a time; a single body may
    /// have any size. Further bodies are copied. So are bodies of less than 2 KiB, for which copying is as fast, and
    /// the first bodies to a worker that is still joining.
    fn memory(&self, len: usize) -> Option<Region> {
        let _ = len;
        None
    }

    /// Returns whether a message to `worker` arrives as soon as it is sent, because both workers share memory. Sending
    /// a message early then has no benefit.
    fn is_near(&self, worker: usize) -> bool {
        let _ = worker;
        false
    }

    /// Returns whether messages to `worker` may leave this machine, so that network cards and another machine's memory
    /// may corrupt them. The default is `false`.
    fn leaves_machine(&self, worker: usize) -> bool {
        let _ = worker;
        false
    }

    /// Returns the progress of a message from `worker` that was received in part, if there is one. The worker has then
    /// sent the message, but the link is slow.
    fn partial_message(&self, worker: usize) -> Option<PartialMessage> {
        let _ = worker;
        None
    }

    /// Extends the time for which this transport waits for unsent data when it closes, because other workers may wait
    /// this long for the data. The longest extension applies.
    fn extend_shutdown_wait(&self, patience: Duration) {
        let _ = patience;
    }

    /// Polls the sockets on the calling thread, until something was delivered or `patience` has passed. Returns
    /// immediately if another thread polls, or if polling is not needed.
    ///
    /// A thread that waits for a message calls this, so that no other thread must be woken first. Otherwise messages
    /// arrive about 50 µs later, or a millisecond later if another thread has polled recently.
    ///
    /// `is_there` returns whether the message for which the caller waits was already delivered. It is called while no
    /// other thread can deliver messages, so that a message that was delivered just before is not missed.
    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome;

    /// Returns whether all other workers share memory with this one, so that short messages can be
    /// [exchanged](Self::exchange) without waiting for the system.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Sends a message to each other worker, and receives their next messages if they arrive within some microseconds.
    /// `head` is the head of all messages. `bodies` must contain the body for each other worker, by rank.
    ///
    /// Afterwards, `bodies` contains the body of each message that was received, whose head is also `head`. All other
    /// messages are delivered to the receiver when a thread [polls](Self::poll). The default receives none.
    ///
    /// Returns the worker for which this thread has waited last; `None` if it has not waited.
    fn exchange(&self, head: &[u8], bodies: &mut [Option<Bytes>]) -> Option<usize> {
        for (worker, body) in bodies.iter_mut().enumerate() {
            if let Some(body) = body.take() {
                self.send(worker, Message { head: Bytes::copy_from_slice(head), body });
            }
        }
        None
    }

    /// Returns the library that sums vectors over all workers, if this transport uses one.
    fn native_sum(&self) -> Option<&dyn NativeSum> {
        None
    }

    /// Closes the transport gracefully: everything that it has sent still arrives, and the others see that
    /// this worker has exited.
    fn close(&self);
}
