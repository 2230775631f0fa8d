//! The positions of reads and writes in a ring, as pure values and functions.
//!
//! A position is the number of bytes since the beginning, which never overflows in practice. Each side keeps its own
//! position. It reads the other side's position from shared memory, and checks it in this module before using it.

use std::ops::Range;

/// The capacity of a ring, in bytes.
pub(crate) const CAPACITY: usize = 1 << 20;

/// An error that shared memory contains a position that the other side cannot have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its shared memory holds a position {ahead} next to this worker's {behind}, and a ring has {CAPACITY} \
     bytes"
)]
pub(crate) struct WrongPosition {
    behind: u64,
    ahead: u64,
}

/// Returns the number of bytes between the position read and the position written.
///
/// # Errors
/// Returns [`WrongPosition`] if this is negative, or more than a ring holds.
pub(crate) fn between(read: u64, written: u64) -> Result<usize, WrongPosition> {
    match written.checked_sub(read) {
        Some(bytes) if bytes <= CAPACITY as u64 => Ok(bytes as usize),
        _ => Err(WrongPosition { behind: read, ahead: written }),
    }
}

/// Returns the ranges in the ring of the `length` bytes from a position. The second range is the part that wraps around
/// to the beginning, and may be empty.
pub(crate) fn pieces(position: u64, length: usize) -> [Range<usize>; 2] {
    let start = (position % CAPACITY as u64) as usize;
    let length = length.min(CAPACITY);
    let first = length.min(CAPACITY - start);
    [start..start + first, 0..length - first]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_positions_within_a_ring_of_each_other_are_possible() {
        let full = CAPACITY as u64;
        for (read, written, expected) in [(0, 0, Some(0)), (5, 9, Some(4)), (7, 7 + full, Some(CAPACITY))] {
            assert_eq!(between(read, written).ok(), expected);
        }
        for (read, written) in [(1, 0), (0, full + 1), (0, u64::MAX), (u64::MAX, 0)] {
            assert!(between(read, written).is_err(), "{read} {written}");
        }
    }

    proptest! {
        #[test]
        fn pieces_are_inside_and_make_up_the_whole(position in any::<u64>(), length in 0..=CAPACITY) {
            let [first, second] = pieces(position, length);
            prop_assert_eq!(first.len() + second.len(), length);
            prop_assert!(first.end <= CAPACITY && second.end <= CAPACITY);
            prop_assert!(second.is_empty() || (first.end == CAPACITY && second.end <= first.start));
        }
    }
}
