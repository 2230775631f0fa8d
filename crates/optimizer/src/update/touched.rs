//! The elements of a variable that a step changes.

use std::ops::Range;

/// The elements of a variable that change in a step.
#[derive(Debug)]
pub(crate) enum Touched {
    All,
    /// Some rows, in ascending order, and the number of elements in each.
    Rows(Vec<usize>, usize),
}

impl Touched {
    /// Returns the elements in `range` that change, as ranges in ascending order.
    pub(crate) fn spans(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (all, rows) = match self {
            Touched::All => (Some(range.clone()), None),
            Touched::Rows(rows, width) => (None, Some((rows_in(rows, *width, range), *width))),
        };
        let rows = rows.into_iter().flat_map({
            let range = range.clone();
            move |(rows, width)| {
                let range = range.clone();
                rows.iter().map(move |row| clipped(*row, width, &range))
            }
        });
        all.into_iter().filter(|all| !all.is_empty()).chain(rows)
    }

    /// Returns the number of elements in `range` that change.
    pub(crate) fn count(&self, range: &Range<usize>) -> usize {
        match self {
            Touched::All => range.len(),
            Touched::Rows(rows, width) => {
                let rows = rows_in(rows, *width, range);
                let cut =
                    |row: Option<&usize>| row.map_or(0, |row| width - clipped(*row, *width, range).len());
                // Only the first and the last may begin before the range or end after it.
                let last = if rows.len() > 1 { cut(rows.last()) } else { 0 };
                rows.len() * width - cut(rows.first()) - last
            }
        }
    }
}

/// Returns the elements of a row that are in a range.
pub(crate) fn clipped(row: usize, width: usize, range: &Range<usize>) -> Range<usize> {
    (row * width).max(range.start)..((row + 1) * width).min(range.end)
}

/// Returns the rows that have at least one element in a range of a table.
pub(crate) fn rows_of(range: &Range<usize>, width: usize) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    // A range that is not empty has rows that are not.
    range.start / width.max(1)..range.end.div_ceil(width.max(1))
}

/// Returns the elements of `rows` whose rows have at least one element in `range`.
fn rows_in<'r>(rows: &'r [usize], width: usize, range: &Range<usize>) -> &'r [usize] {
    let there = rows_of(range, width);
    let at = |border: usize| rows.partition_point(|row| *row < border);
    &rows[at(there.start)..at(there.end)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_are_the_elements_of_rows_that_are_in_the_range(
            rows in proptest::collection::btree_set(0usize..12, 0..8), width in 1usize..7, a in 0usize..84, b in 0usize..84,
        ) {
            let range = a.min(b).min(12 * width)..a.max(b).min(12 * width);
            let expected: Vec<usize> =
                range.clone().filter(|element| rows.contains(&(element / width))).collect();
            let touched = Touched::Rows(rows.into_iter().collect(), width);
            prop_assert_eq!(touched.spans(&range).flatten().collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(touched.count(&range), expected.len());
            prop_assert_eq!(Touched::All.spans(&range).flatten().count(), range.len());
        }
    }
}
