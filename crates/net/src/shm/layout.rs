//! The layout of the memory that two workers share.

use super::ring;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The maximum number of bodies of one side that the other side reads at the same time.
pub(crate) const SLOTS: usize = 256;

/// The maximum number of short messages of one side that the other side has not received. With two, workers that send
/// each other messages by turns always have room.
pub(crate) const SHORT_MESSAGES: usize = 2;

/// The number of words of 8 bytes in which the head and the body of a short message are stored.
pub(crate) const SHORT_WORDS: usize = 268;

/// The offset in bytes of the rings: first the one that side 0 writes, then the one that side 1 writes.
pub(crate) const RINGS: usize = 32 << 10;

/// The size of the shared memory, in bytes.
pub(crate) const TOTAL: usize = RINGS + 2 * ring::CAPACITY;

/// A value in its own cache line, so that writes to other values do not slow down its readers.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub T);

/// The control words before the rings. Side 0 is the side that has created the memory, and side 1 the one that has
/// opened it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    /// The token that identifies this memory.
    pub token: Line<[AtomicU64; 4]>,
    /// The words of each side.
    pub sides: [Side; 2],
}

/// The words of one side.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Side {
    /// The id of the side's process; 0 until the side has mapped this memory. Written by this side.
    pub pid: Line<AtomicU32>,
    /// Whether the side can open memory of the other side's process. Written by this side.
    pub opens: Line<AtomicU32>,
    /// The number of bytes that the side has written into its ring. Written by this side.
    pub written: Line<AtomicU64>,
    /// The number of bytes that the side has read from the other side's ring. Written by this side.
    pub read: Line<AtomicU64>,
    /// The number of the side's threads that sleep or are about to sleep. Written by this side.
    pub asleep: Line<AtomicU32>,
    /// Whether the side wants to be woken when there is space in its ring. Written by both sides.
    pub wants_room: Line<AtomicU32>,
    /// Whether a byte that wakes the side is in transit. Written by both sides.
    pub wake_sent: Line<AtomicU32>,
    /// The id of the loan that was returned last, for each of the side's slots. Written by the other side.
    pub returned: Line<[AtomicU64; SLOTS]>,
    /// The number of short messages of the other side that the side has received. Written by this side.
    pub short_received: Line<AtomicU64>,
    /// The latest short messages of the side. Message `n` is at index `n` modulo [`SHORT_MESSAGES`]. Written by this
    /// side.
    pub short: [ShortMessage; SHORT_MESSAGES],
}

/// A short message, next to the words that the receiver needs to take it.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ShortMessage {
    /// The number of the message, from 1; 0 if there was none. Written last.
    pub number: AtomicU64,
    /// The number of bytes that the sender had written into its ring before the message.
    pub written: AtomicU64,
    /// The number of short messages that the sender had received before it sent this one.
    pub received: AtomicU64,
    /// The length of the head, the length of the body, and whether the body is a reference: see `short.rs`.
    pub lengths: AtomicU64,
    /// The head, padded to a multiple of 8 bytes, and the body.
    pub words: [AtomicU64; SHORT_WORDS],
}

const _: () = assert!(size_of::<Control>() <= RINGS);
