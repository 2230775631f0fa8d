//! The layout of the memory that two workers share.

use super::ring;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The maximum number of bodies of one side that the other side reads at the same time.
pub(crate) const SLOTS: usize = 256;

/// The offset in bytes of the rings: first the one that side 0 writes, then the one that side 1 writes.
pub(crate) const RINGS: usize = 16 << 10;

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
}

const _: () = assert!(size_of::<Control>() <= RINGS);
