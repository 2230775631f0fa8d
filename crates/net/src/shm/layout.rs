//! The layout of the memory of a pair of workers.

use super::ring;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The maximum number of bodies that one side has on loan to the other at the same time.
pub(crate) const SLOTS: usize = 256;

/// The offset of the rings. The ring that side 0 writes comes first, followed by that of side 1.
pub(crate) const RINGS: usize = 16 << 10;

/// The size of a pair's memory, in bytes.
pub(crate) const TOTAL: usize = RINGS + 2 * ring::CAPACITY;

/// A value that does not share a cache line with other values.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub T);

/// The control words before the rings. Side 0 has created the memory, and side 1 has opened it.
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
    /// The id of the side's process; 0 until the side has mapped this memory. It is written by the side.
    pub pid: Line<AtomicU32>,
    /// Whether the side can open memory of the other side's process. It is written by the side.
    pub opens: Line<AtomicU32>,
    /// The number of bytes that the side has written into its ring. It is written by the side.
    pub written: Line<AtomicU64>,
    /// The number of bytes that the side has read from the other's ring. It is written by the side.
    pub read: Line<AtomicU64>,
    /// The number of the side's threads that sleep or are about to sleep. It is written by the side.
    pub asleep: Line<AtomicU32>,
    /// Whether the side wants to be woken when there is space in its ring. It is written by both sides.
    pub wants_room: Line<AtomicU32>,
    /// Whether a byte that wakes the side is on its way. It is written by both sides.
    pub wake_sent: Line<AtomicU32>,
    /// The id of the loan that was returned last, for each slot of the side. It is written by the other side.
    pub returned: Line<[AtomicU64; SLOTS]>,
}

const _: () = assert!(size_of::<Control>() <= RINGS);
