//! Where in a ring the next bytes are read or written. Pure.
//!
//! A position is the number of bytes since the beginning, which no program reaches the end of. Each side keeps its own; the
//! other's is read from memory that the other writes, and compared here before it is used.

use std::ops::Range;

/// How many bytes a ring holds.
pub(crate) const CAPACITY: usize = 1 << 20;

/// A position in shared memory is none that the other side can be at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its shared memory holds a position {ahead} beside this worker's {behind}, and a ring has {CAPACITY} bytes"
)]
pub(crate) struct WrongPosition {
    behind: u64,
    ahead: u64,
}

/// How many bytes are between what has been read and what has been written.
pub(crate) fn between(read: u64, written: u64) -> Result<usize, WrongPosition> {
    match written.checked_sub(read) {
        Some(bytes) if bytes <= CAPACITY as u64 => Ok(bytes as usize),
        _ => Err(WrongPosition { behind: read, ahead: written }),
    }
}

/// Where the `length` bytes from a position on are: up to the ring's end, and from its beginning.
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
