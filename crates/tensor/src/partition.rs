//! Partitions of a vector into ranges for threads, workers or groups. They depend only on sizes.
//!
//! The ranges are consecutive, cover the vector, and begin at multiples of a grain, such as the number of elements in a
//! cache line. If there are fewer grains than parts, some parts are empty.
//!
//! | function | sizes of the parts | 5 grains in 3 parts |
//! |---|---|---|
//! | [`chunk`] | all equal, except that the last ones are shorter or empty | 2, 2, 1 |
//! | [`even`] | equal up to one grain | 1, 2, 2 |
//!
//! The longest range has the same number of grains in both partitions.

use std::ops::Range;

/// Returns the length of the chunks into which `len` elements are divided if there are `parts` chunks. The length is a
/// multiple of `grain`, and never 0.
pub fn chunk_len(len: usize, parts: usize, grain: usize) -> usize {
    let grain = grain.max(1);
    len.div_ceil(parts.max(1)).next_multiple_of(grain).max(grain)
}

/// Returns the range of chunk `part` if `len` elements are divided into chunks of [equal length](chunk_len), as with
/// [`slice::chunks`].
///
/// ```
/// use distribute_tensor::partition::chunk;
///
/// assert_eq!([0, 1, 2, 3].map(|part| chunk(300, 4, 64, part)), [0..128, 128..256, 256..300, 300..300]);
/// ```
pub fn chunk(len: usize, parts: usize, grain: usize, part: usize) -> Range<usize> {
    let each = chunk_len(len, parts, grain);
    let start = each.saturating_mul(part).min(len);
    start..start.saturating_add(each).min(len)
}

/// Returns the range of part `part` if `len` elements are divided into `parts` parts that differ by at most one grain.
///
/// ```
/// use distribute_tensor::partition::even;
///
/// assert_eq!([0, 1, 2, 3].map(|part| even(300, 4, 64, part)), [0..64, 64..128, 128..192, 192..300]);
/// ```
pub fn even(len: usize, parts: usize, grain: usize, part: usize) -> Range<usize> {
    let (parts, grain) = (parts.max(1), grain.max(1));
    let grains = len.div_ceil(grain);
    let border = |at: usize| {
        let at = at.min(parts);
        // `grains * at / parts`, without its overflow.
        let grains = grains / parts * at + grains % parts * at / parts;
        grains.saturating_mul(grain).min(len)
    };
    border(part)..border(part.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Partition = fn(usize, usize, usize, usize) -> Range<usize>;

    fn ranges(partition: Partition, len: usize, parts: usize, grain: usize) -> Vec<Range<usize>> {
        (0..parts).map(|part| partition(len, parts, grain, part)).collect()
    }

    proptest! {
        #[test]
        fn ranges_cover_the_vector_in_order_and_begin_at_grains(
            len in prop_oneof![0usize..300, 0usize..100_000], parts in 1usize..40, grain in 1usize..3000,
        ) {
            for partition in [chunk as Partition, even] {
                let mut end = 0;
                for range in ranges(partition, len, parts, grain) {
                    prop_assert_eq!(range.start, end);
                    prop_assert!(range.start.is_multiple_of(grain) || range.is_empty());
                    end = range.end;
                }
                prop_assert_eq!(end, len);
                prop_assert!(partition(len, parts, grain, parts).is_empty(), "after the last");
            }
        }

        #[test]
        fn even_parts_differ_by_a_grain_and_chunks_only_at_the_end(
            len in 0usize..100_000, parts in 1usize..40, grain in 1usize..3000,
        ) {
            let grains = |partition| -> Vec<_> {
                ranges(partition, len, parts, grain).iter().map(|range| range.len().div_ceil(grain)).collect()
            };
            let (chunks, even) = (grains(chunk), grains(even));
            let fewest = len.div_ceil(grain) / parts;
            prop_assert!(even.iter().all(|grains| (fewest..=fewest + 1).contains(grains)), "{:?}", even);
            let full = chunk_len(len, parts, grain) / grain;
            let shorter = chunks.iter().skip_while(|grains| **grains == full).skip(1);
            prop_assert!(shorter.copied().all(|grains| grains == 0), "{:?}", chunks);
            prop_assert_eq!(even.iter().max(), chunks.iter().max());
        }
    }

    #[test]
    fn first_last_and_empty_parts() {
        assert_eq!(ranges(chunk, 5 * 64, 3, 64), [0..128, 128..256, 256..320]);
        assert_eq!(ranges(even, 5 * 64, 3, 64), [0..64, 64..192, 192..320]);
        for partition in [chunk as Partition, even] {
            assert_eq!(ranges(partition, 0, 2, 64), [0..0, 0..0]);
            assert_eq!(ranges(partition, 7, 1, 64), std::slice::from_ref(&(0..7)));
            assert_eq!(partition(7, 0, 0, 0), 0..7, "no parts and no grain count as one");
        }
        // Fewer elements than parts.
        assert_eq!(ranges(chunk, 2, 3, 1), [0..1, 1..2, 2..2]);
        assert_eq!(ranges(even, 2, 3, 1), [0..0, 0..1, 1..2]);
        assert_eq!(ranges(chunk, 10, 3, 64), [0..10, 10..10, 10..10]);
        assert_eq!(ranges(even, 10, 3, 64), [0..0, 0..0, 0..10]);
    }

    #[test]
    fn sizes_that_no_memory_has_overflow_nothing() {
        for partition in [chunk as Partition, even] {
            assert_eq!(partition(usize::MAX, 7, 1, 6).end, usize::MAX);
            assert_eq!(partition(usize::MAX, 7, 1, usize::MAX), usize::MAX..usize::MAX);
        }
    }
}
