//! The assignment of a table's rows to locks, as a pure function.

use std::ops::Range;

/// The maximum number of locks of a table. With this number, threads rarely wait for each other, and a batch of a
/// thousand rows still has several rows for each lock.
const STRIPES: usize = 128;

/// The target size of a range in bytes, which is exceeded if a row is larger. It is two pages, so that complete tables
/// are read and written in long runs.
const RANGE_BYTES: usize = 8 << 10;

/// The rows of a table, split into ranges that are assigned in turn to *stripes*. Each stripe has one lock.
///
/// The most frequently used rows are often the first ones. If each stripe were one contiguous range, all threads would
/// wait for the lock of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    rows: usize,
    /// The binary logarithm of the number of rows in a range.
    range: u32,
    /// The binary logarithm of the number of stripes.
    stripes: u32,
}

/// A range of rows: the indices in the table, and those in its stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StripeRange {
    pub(super) rows: Range<usize>,
    pub(super) local: Range<usize>,
}

impl Layout {
    pub(super) fn new(rows: usize, bytes_per_row: usize) -> Self {
        let range = (RANGE_BYTES / bytes_per_row.max(1)).max(1).next_power_of_two().ilog2();
        let ranges = rows.div_ceil(1 << range).max(1);
        Self { rows, range, stripes: ranges.min(STRIPES).ilog2() }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn stripes(&self) -> usize {
        1 << self.stripes
    }

    /// Returns the stripe of a row.
    pub(super) fn stripe(&self, row: usize) -> usize {
        (row >> self.range) & (self.stripes() - 1)
    }

    /// Returns the index of a row in its stripe.
    pub(super) fn local(&self, row: usize) -> usize {
        row >> (self.range + self.stripes) << self.range | row & ((1 << self.range) - 1)
    }

    /// Returns the row at index `local` of a stripe.
    pub(super) fn row(&self, stripe: usize, local: usize) -> usize {
        let ranges = local >> self.range << (self.range + self.stripes);
        ranges | stripe << self.range | local & ((1 << self.range) - 1)
    }

    /// Returns the number of rows of a stripe.
    pub(super) fn len(&self, stripe: usize) -> usize {
        let turn = self.range + self.stripes;
        let rest = (self.rows & ((1 << turn) - 1)).saturating_sub(stripe << self.range);
        (self.rows >> turn << self.range) + rest.min(1 << self.range)
    }

    /// Returns the ranges of a stripe, in ascending order.
    pub(super) fn stripe_ranges(&self, stripe: usize) -> impl Iterator<Item = StripeRange> + use<> {
        self.stripe_ranges_within(stripe, &(0..self.rows))
    }

    /// Returns the ranges of a stripe that contain any of the given rows, in ascending order.
    pub(super) fn stripe_ranges_within(
        &self,
        stripe: usize,
        rows: &Range<usize>,
    ) -> impl Iterator<Item = StripeRange> + use<> {
        let layout = *self;
        let (turn, end) = (layout.range + layout.stripes, layout.rows.min(rows.end));
        let first = (rows.start >> turn << turn) + (stripe << layout.range);
        // The first range may contain only rows before the requested ones.
        let first = if first + (1 << layout.range) <= rows.start { first + (1 << turn) } else { first };
        (first..end).step_by(1 << (layout.range + layout.stripes)).map(move |row| {
            let (end, local) = (layout.rows.min(row + (1 << layout.range)), layout.local(row));
            StripeRange { rows: row..end, local: local..local + (end - row) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_two_pages_and_the_first_rows_are_under_many_locks() {
        let layout = Layout::new(1_000_000, 128);
        assert_eq!((layout.stripes(), layout.stripe(63), layout.stripe(64)), (128, 0, 1));
        assert_eq!(Layout::new(1_000_000, 1 << 20).stripe(1), 1);
        // A scalar, a small variable, and an empty one.
        for rows in [0, 1, 1000] {
            assert_eq!(Layout::new(rows, 4).stripes(), 1);
        }
    }

    #[test]
    fn ranges_within_some_rows_are_those_that_contain_them() {
        let layout = Layout::new(5_000, 1 << 10);
        for rows in [0..0, 0..1, 7..9, 8..16, 1_023..1_025, 1_500..4_999, 4_992..5_000, 0..5_000] {
            for stripe in 0..layout.stripes() {
                let some: Vec<_> = layout.stripe_ranges_within(stripe, &rows).collect();
                let meets = |range: &StripeRange| range.rows.start < rows.end && rows.start < range.rows.end;
                let expected: Vec<_> = layout.stripe_ranges(stripe).filter(meets).collect();
                assert_eq!(some, expected, "{rows:?} of stripe {stripe}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_place(rows in 0usize..5000, bytes_per_row in 1usize..20_000) {
            let layout = Layout::new(rows, bytes_per_row);
            let mut seen = vec![0; rows];
            for stripe in 0..layout.stripes() {
                let mut next = 0;
                for StripeRange { rows, local } in layout.stripe_ranges(stripe) {
                    prop_assert_eq!((local.start, local.len()), (next, rows.len()));
                    next = local.end;
                    for (row, local) in rows.zip(local) {
                        seen[row] += 1;
                        prop_assert_eq!((layout.stripe(row), layout.local(row)), (stripe, local));
                        prop_assert_eq!(layout.row(stripe, local), row);
                    }
                }
                prop_assert_eq!(layout.len(stripe), next);
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }
    }
}
