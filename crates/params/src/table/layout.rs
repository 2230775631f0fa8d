//! Which lock guards which row.

use std::ops::Range;

/// At most so many locks a table: enough for the threads of a machine to be seldom in each other's way, and few enough for a
/// batch of a thousand rows to have several under each.
const STRIPES: usize = 128;

/// Ranges have so many bytes, or one row: two pages, so that what is read and written as a whole goes by long stretches.
const RANGE_BYTES: usize = 8 << 10;

/// The rows of a table, cut into ranges that are dealt out to *stripes* in turn. A stripe is what one lock guards.
///
/// In turn, since the rows that are asked for most are often the first ones: stripes of one range each would have one lock that
/// everybody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    rows: usize,
    /// A range has 2 to this power rows.
    range: u32,
    /// There are 2 to this power stripes.
    stripes: u32,
}

/// A range of rows: which they are of the table, and which of their stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
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

    /// The stripe that has a row.
    pub(super) fn stripe(&self, row: usize) -> usize {
        (row >> self.range) & (self.stripes() - 1)
    }

    /// Which of its stripe's rows a row is.
    pub(super) fn local(&self, row: usize) -> usize {
        row >> (self.range + self.stripes) << self.range | row & ((1 << self.range) - 1)
    }

    /// How many rows a stripe has.
    pub(super) fn len(&self, stripe: usize) -> usize {
        let turn = self.range + self.stripes;
        let rest = (self.rows & ((1 << turn) - 1)).saturating_sub(stripe << self.range);
        (self.rows >> turn << self.range) + rest.min(1 << self.range)
    }

    /// The ranges of a stripe, ascending.
    pub(super) fn stretches(&self, stripe: usize) -> impl Iterator<Item = Stretch> + use<> {
        let layout = *self;
        let first = stripe << layout.range;
        (first..layout.rows).step_by(1 << (layout.range + layout.stripes)).map(move |row| {
            let (end, local) = (layout.rows.min(row + (1 << layout.range)), layout.local(row));
            Stretch { rows: row..end, local: local..local + (end - row) }
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
        // A scalar, a small variable, and nothing.
        for rows in [0, 1, 1000] {
            assert_eq!(Layout::new(rows, 4).stripes(), 1);
        }
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_place(rows in 0usize..5000, bytes_per_row in 1usize..20_000) {
            let layout = Layout::new(rows, bytes_per_row);
            let mut seen = vec![0; rows];
            for stripe in 0..layout.stripes() {
                let mut next = 0;
                for Stretch { rows, local } in layout.stretches(stripe) {
                    prop_assert_eq!((local.start, local.len()), (next, rows.len()));
                    next = local.end;
                    for (row, local) in rows.zip(local) {
                        seen[row] += 1;
                        prop_assert_eq!((layout.stripe(row), layout.local(row)), (stripe, local));
                    }
                }
                prop_assert_eq!(layout.len(stripe), next);
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }
    }
}
