//! The choice of the number of rows that are read at a time, based on the sizes of pages.

/// The memory that a column of a row group occupies, computed page by page.
#[derive(Debug, Default)]
pub(super) struct ColumnSize {
    /// The number of values and bytes of each part of the column. Small pages are combined into parts, so the
    /// number of parts is bounded by the decompressed size of the file.
    parts: Vec<(u64, u64)>,
    /// The total number of values of all pages.
    values: u64,
    /// The largest average size in bytes of the values of a page.
    largest: u64,
}

/// The size in bytes at which a part is complete.
const PART: u64 = 64 * 1024;

impl ColumnSize {
    /// Adds a page of `values` values that occupy `bytes` bytes of memory.
    pub(super) fn add(&mut self, values: u64, bytes: u64) {
        self.values = self.values.saturating_add(values);
        self.largest = self.largest.max(bytes.div_ceil(values.max(1)));
        match self.parts.last_mut() {
            Some((more, size)) if *size < PART && bytes < PART => {
                (*more, *size) = (more.saturating_add(values), size.saturating_add(bytes));
            }
            _ => self.parts.push((values, bytes)),
        }
    }

    /// Returns the number of bytes that the column occupies.
    fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |all, (_, bytes)| all.saturating_add(*bytes))
    }

    /// Returns the maximum number of bytes that any `values` consecutive values occupy.
    fn most(&self, values: u64) -> u64 {
        // The largest run begins or ends with a part.
        most(self.parts.iter(), values).max(most(self.parts.iter().rev(), values))
    }
}

/// Returns the maximum number of bytes that any `wanted` consecutive values occupy, if they begin with a part.
fn most<'a>(parts: impl Iterator<Item = &'a (u64, u64)> + Clone, wanted: u64) -> u64 {
    let mut ahead = parts.clone();
    let (mut values, mut bytes, mut last, mut most) = (0u64, 0u64, (0, 0), 0);
    for (first_values, first_bytes) in parts {
        while values < wanted
            && let Some(next) = ahead.next()
        {
            last = *next;
            (values, bytes) = (values.saturating_add(next.0), bytes.saturating_add(next.1));
        }
        let beyond = values.saturating_sub(wanted).min(last.0);
        let cut = u128::from(last.1) * u128::from(beyond) / u128::from(last.0.max(1));
        most = most.max(bytes.saturating_sub(cut as u64));
        (values, bytes) = (values.saturating_sub(*first_values), bytes.saturating_sub(*first_bytes));
    }
    most
}

/// The memory that a row group occupies, by column.
#[derive(Debug, Default)]
pub(super) struct GroupSize {
    pub(super) rows: u64,
    pub(super) columns: Vec<ColumnSize>,
}

impl GroupSize {
    /// Returns the average size of a row in bytes, and the index of the column that occupies the most memory.
    pub(super) fn row(&self) -> (u64, usize) {
        let rows = self.rows.max(1);
        let all = self.columns.iter().fold(0u64, |all, column| all.saturating_add(column.bytes()));
        let largest = self.columns.iter().enumerate().max_by_key(|(_, column)| column.bytes());
        (all / rows, largest.map_or(0, |(number, _)| number))
    }

    /// Returns the number of rows to read at a time, at most `most`. These rows occupy at most `bytes` bytes in
    /// addition to the largest row.
    pub(super) fn at_a_time(&self, most: usize, bytes: u64) -> usize {
        let row = self.columns.iter().fold(0u64, |all, column| all.saturating_add(column.largest));
        let mut rows = most;
        while rows > 1 && self.most(rows) > bytes.saturating_add(row) {
            rows /= 2;
        }
        rows.max(1)
    }

    /// Returns the maximum number of bytes that any `rows` consecutive rows occupy.
    fn most(&self, rows: usize) -> u64 {
        let of_column = |column: &ColumnSize| {
            let values = u128::from(column.values) * rows as u128;
            column.most(u64::try_from(values.div_ceil(u128::from(self.rows.max(1)))).unwrap_or(u64::MAX))
        };
        self.columns.iter().map(of_column).fold(0, u64::saturating_add)
    }
}

/// A sequence of consecutive row groups with the same number of rows read at a time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) groups: Vec<usize>,
    pub(super) rows: usize,
}

/// Combines consecutive row groups into a run if the same number of rows is read at a time. `rows_of_groups` yields
/// this number for each group.
pub(super) fn runs(rows_of_groups: impl IntoIterator<Item = usize>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (group, rows) in rows_of_groups.into_iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.rows == rows => run.groups.push(group),
            _ => runs.push(Run { groups: vec![group], rows }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(pages: &[(u64, u64)]) -> ColumnSize {
        let mut column = ColumnSize::default();
        pages.iter().for_each(|(values, bytes)| column.add(*values, *bytes));
        column
    }

    fn at_a_time(pages: &[(u64, u64)], bytes: u64) -> usize {
        let column = column(pages);
        GroupSize { rows: column.values, columns: vec![column] }.at_a_time(1024, bytes)
    }

    const MB: u64 = 1 << 20;

    #[test]
    fn rows_are_as_many_as_the_largest_that_follow_each_other_allow() {
        assert_eq!(at_a_time(&[(100_000, MB); 9], 16 * MB), 1024);
        assert_eq!(at_a_time(&[(1, MB); 2000], 16 * MB), 16);
        // A page of 100 rows of 10 KB each, and large rows after small ones.
        assert_eq!(at_a_time(&[(100, MB); 50], MB), 64);
        let small = [(1_000_000, MB); 4];
        let large = [(1, MB); 1000];
        assert_eq!(at_a_time(&[&small[..], &large].concat(), 16 * MB), 16);
        assert_eq!(at_a_time(&[&large[..], &small].concat(), 16 * MB), 16);
        // One large row takes its own memory wherever it is. It is no reason to read all others one by one.
        assert_eq!(at_a_time(&[&small[..], &[(1, 100 * MB)], &small].concat(), 16 * MB), 1024);
        assert_eq!(at_a_time(&[], MB), 1024);
        assert_eq!(at_a_time(&[(0, MB), (0, 0)], 0), 1024);
    }

    #[test]
    fn lists_have_several_values_in_a_row() {
        let group = GroupSize { rows: 1000, columns: vec![column(&[(1_000_000, 8 * MB); 125])] };
        assert_eq!(group.row().0, MB * 125 * 8 / 1000);
        assert_eq!(group.at_a_time(1024, 16 * MB), 16);
    }

    #[test]
    fn small_pages_are_added_up() {
        let column = column(&[(1, 10); 100_000]);
        assert!(column.parts.len() < 20);
        assert_eq!(
            (column.bytes(), column.values, column.most(1000).next_multiple_of(100)),
            (1_000_000, 100_000, 10_000)
        );
    }

    #[test]
    fn groups_that_are_read_alike_are_read_together() {
        let run = |groups: &[usize], rows| Run { groups: groups.to_vec(), rows };
        assert_eq!(runs([9, 9, 4, 9]), [run(&[0, 1], 9), run(&[2], 4), run(&[3], 9)]);
        assert_eq!(runs([]), []);
    }
}
