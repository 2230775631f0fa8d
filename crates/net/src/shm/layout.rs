//! How the memory of a pair of workers is laid out.

use super::ring;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// How many bodies one side can have lent the other at once.
pub(crate) const SLOTS: usize = 256;

/// Where the rings begin: that which side 0 writes, then that of side 1.
pub(crate) const RINGS: usize = 16 << 10;

/// The size of the memory of a pair.
pub(crate) const TOTAL: usize = RINGS + 2 * ring::CAPACITY;

/// What is not to be in one cache line with its neighbour.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub T);

/// The words in front of the rings. The sides are 0, which made the memory, and 1.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    /// Which memory this is.
    pub token: Line<[AtomicU64; 4]>,
    /// Of each side.
    pub sides: [Side; 2],
}

/// What concerns one side.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Side {
    /// Its process, once it has mapped this. Written by it.
    pub pid: Line<AtomicU32>,
    /// Whether it can open memory of the other's process. Written by it.
    pub opens: Line<AtomicU32>,
    /// How much it has put into its ring. Written by it.
    pub written: Line<AtomicU64>,
    /// How much it has taken out of the other's ring. Written by it.
    pub read: Line<AtomicU64>,
    /// How many of its threads sleep, or are about to. Written by it.
    pub asleep: Line<AtomicU32>,
    /// Whether it wants to be woken when there is room in its ring. Written by both.
    pub wants_room: Line<AtomicU32>,
    /// Whether a byte is on the way that wakes it. Written by both.
    pub rung: Line<AtomicU32>,
    /// Of what it has lent, by slot: the number of the loan that was given back last. Written by the other side.
    pub returned: Line<[AtomicU64; SLOTS]>,
}

const _: () = assert!(size_of::<Control>() <= RINGS);
