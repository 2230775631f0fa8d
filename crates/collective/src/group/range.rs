//! The partition of elements into ranges: functions of sizes alone.

use std::ops::Range;

/// Ranges begin at multiples of this many elements, so that no two share a cache line.
pub(super) const GRAIN: usize = 64;

/// Returns the range of `len` elements that a worker folds.
pub(super) fn range(len: usize, workers: usize, worker: usize) -> Range<usize> {
    let each = len.div_ceil(workers.max(1)).next_multiple_of(GRAIN);
    let start = each.saturating_mul(worker).min(len);
    start..start.saturating_add(each).min(len)
}

/// The two halves of a range; of a short one, the second is empty.
pub(super) fn halves(range: &Range<usize>) -> [Range<usize>; 2] {
    let middle = range.start + range.len().div_ceil(2).next_multiple_of(GRAIN).min(range.len());
    [range.start..middle, middle..range.end]
}
