//! The assignment of rows to files. The assignment depends only on the sizes of the slices and the number of files.

use std::ops::Range;

/// The size of a slice: rows that were added to the writer in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// The number of rows, by which the slice can be split; 1 for a scalar.
    pub(crate) rows: usize,
    /// The size of all rows together, in bytes.
    pub(crate) bytes: usize,
}

/// A range of rows of one slice. All of them are stored in the same file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowRange {
    /// The index of the slice in the input of [`plan`].
    pub(crate) slice: usize,
    /// The rows, counted from the first row of the slice.
    pub(crate) rows: Range<usize>,
}

/// Returns the row ranges of each file: at most `files` files of about equal size, none of them empty.
///
/// A slice that is larger than an equal share is split. The largest ranges are assigned first, each to the file
/// that is smallest so far.
pub(crate) fn plan(slices: &[Slice], files: usize) -> Vec<Vec<RowRange>> {
    let files = files.max(1);
    let total = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.bytes));
    let share = total.div_ceil(files).max(1);
    let mut ranges: Vec<(usize, RowRange)> = Vec::new();
    for (number, slice) in slices.iter().enumerate() {
        let parts = slice.bytes.div_ceil(share).clamp(1, slice.rows.max(1));
        for part in 0..parts {
            // The first ranges have one more row if they cannot be equal.
            let start = part * (slice.rows / parts) + part.min(slice.rows % parts);
            let len = slice.rows / parts + usize::from(part < slice.rows % parts);
            let bytes = (slice.bytes / slice.rows.max(1)).saturating_mul(len);
            ranges.push((bytes, RowRange { slice: number, rows: start..start + len }));
        }
    }
    // A stable sort keeps equally large ranges in the order of their slices, so the same contents give the
    // same files.
    ranges.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let mut filled = vec![(0usize, Vec::new()); files.min(ranges.len())];
    for (bytes, range) in ranges {
        if let Some((size, of_file)) = filled.iter_mut().min_by_key(|(size, of_file)| (*size, of_file.len()))
        {
            *size = size.saturating_add(bytes);
            of_file.push(range);
        }
    }
    filled.into_iter().map(|(_, ranges)| ranges).filter(|ranges| !ranges.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_is_in_one_file(sizes in proptest::collection::vec((0usize..40, 0usize..9), 0..12), files in 0usize..10) {
            let slices: Vec<_> = sizes.iter().map(|(rows, width)| Slice { rows: *rows, bytes: rows * width }).collect();
            let plan = plan(&slices, files);
            prop_assert!(plan.len() <= files.max(1) && plan.iter().all(|ranges| !ranges.is_empty()));
            for (number, slice) in slices.iter().enumerate() {
                let mut rows: Vec<_> =
                    plan.iter().flatten().filter(|p| p.slice == number).map(|p| p.rows.clone()).collect();
                rows.sort_by_key(|r| (r.start, r.end));
                prop_assert!(!rows.is_empty());
                let end = rows.iter().try_fold(0, |end, r| (r.start == end).then_some(r.end));
                prop_assert_eq!(end, Some(slice.rows));
            }
        }
    }

    #[test]
    fn files_are_of_about_equal_size() {
        let slices =
            [Slice { rows: 1000, bytes: 1000 }, Slice { rows: 1, bytes: 10 }, Slice { rows: 10, bytes: 300 }];
        for files in [1, 2, 3, 5, 8] {
            let size = |ranges: &Vec<RowRange>| {
                ranges
                    .iter()
                    .map(|p| slices[p.slice].bytes / slices[p.slice].rows * p.rows.len())
                    .sum::<usize>()
            };
            let sizes: Vec<_> = plan(&slices, files).iter().map(size).collect();
            assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (files, 1310), "{sizes:?}");
            assert!(*sizes.iter().max().unwrap() <= 2 * 1310usize.div_ceil(files), "{sizes:?}");
        }
    }
}
