//! Ranges of a table's rows, with all replicas' gradients by row in the range.

use distribute_base::internal::Number;
use distribute_tensor::kernel::{each_row, fold_scaled};
use std::borrow::Cow;
use std::convert::Infallible;
use std::ops::Range;

/// A range of a table's rows. For each replica with a gradient of the table, it contains the gradient's rows in that
/// range.
pub(crate) struct RowRange<'a, F> {
    pub(crate) row_len: usize,
    first: usize,
    height: usize,
    /// Whether the rule also visits rows without a gradient.
    every_row: bool,
    /// The rows of each replica: their indices in the complete table, in ascending order, and their values.
    replicas: Vec<(&'a [usize], &'a [F])>,
    /// The index of the replica with the most rows. These rows determine how the range is split.
    guide: usize,
}

impl<'a, F> RowRange<'a, F> {
    /// Creates the range of all rows of a table with `height` rows.
    pub(crate) fn new(
        row_len: usize,
        height: usize,
        every_row: bool,
        replicas: Vec<(&'a [usize], &'a [F])>,
    ) -> Self {
        let guide = (0..replicas.len()).max_by_key(|r| replicas[*r].0.len()).unwrap_or(0);
        Self { row_len, first: 0, height, every_row, replicas, guide }
    }

    /// Narrows the range to `rows`, which are indices in the complete table.
    pub(crate) fn restrict(self, rows: Range<usize>) -> Self {
        let among = |(numbers, values): (&'a [usize], &'a [F])| {
            let at = |border: usize| numbers.partition_point(|row| *row < border);
            let (from, to) = (at(rows.start), at(rows.end));
            (&numbers[from..to], &values[from * self.row_len..to * self.row_len])
        };
        let replicas = self.replicas.into_iter().map(among).collect();
        Self { first: rows.start, ..Self::new(self.row_len, rows.len(), self.every_row, replicas) }
    }

    pub(crate) fn elements(&self) -> usize {
        // The height of a table of ids exceeds any memory.
        self.height.saturating_mul(self.row_len)
    }

    /// Returns the number of rows in the range, including those without a gradient.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// Returns the index, in the complete table, of the first row of the range.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Returns an estimate of the number of elements that will be visited.
    pub(crate) fn work(&self) -> usize {
        if self.every_row { self.elements() } else { self.guide().len() * self.row_len }
    }

    /// Splits off complete rows from the start of the range. The split-off range contains approximately the given work,
    /// in elements, or all of the range if that is less.
    pub(crate) fn split_front(&mut self, work: usize) -> Self {
        let (rows, end) = (work.div_ceil(self.row_len.max(1)), self.first + self.height);
        let border = if self.every_row {
            end.min(self.first + rows)
        } else {
            // Rows of other replicas may come after the last row of this one.
            self.guide().get(rows).copied().unwrap_or(end)
        };
        let row_len = self.row_len;
        let cut = |(rows, values): &mut (&'a [usize], &'a [F])| {
            let count = rows.partition_point(|row| *row < border);
            let rows = rows.split_off(..count).unwrap_or_default();
            (rows, values.split_off(..count * row_len).unwrap_or_default())
        };
        let replicas = self.replicas.iter_mut().map(cut).collect();
        let taken = Self { height: border - self.first, replicas, ..*self };
        (self.first, self.height) = (border, end - border);
        taken
    }

    fn guide(&self) -> &'a [usize] {
        self.replicas.get(self.guide).map_or(&[], |(rows, _)| rows)
    }
}

impl<F: Number> RowRange<'_, F> {
    /// Returns the rows of the only replica, relative to the start of the range, and their values. Returns `None` if
    /// there are several replicas or if the rows must be weighted.
    pub(crate) fn only(&self, weights: &[F]) -> Option<(Vec<usize>, &[F])> {
        match (self.replicas.as_slice(), weights) {
            ([(rows, values)], [weight]) if *weight == F::of(1.) => {
                Some((rows.iter().map(|row| row - self.first).collect(), values))
            }
            _ => None,
        }
    }

    /// Calls `then` with each row that at least one replica has, relative to the start of the range, and the row's
    /// values on each replica. The weighted sum of these values is bit-identical to that of dense gradients.
    pub(crate) fn each<E>(&self, mut then: impl FnMut(usize, &[&[F]]) -> Result<(), E>) -> Result<(), E> {
        each_row(&self.replicas, self.row_len, |row, inputs| then(row - self.first, inputs))
    }

    /// Returns the rows that at least one replica has, relative to the start of the range, and the weighted sums of the
    /// rows' values.
    pub(crate) fn reduce(&self, weights: &[F]) -> (Vec<usize>, Cow<'_, [F]>) {
        if let Some((rows, values)) = self.only(weights) {
            return (rows, Cow::Borrowed(values));
        }
        let (mut rows, mut sums) = (Vec::new(), Vec::new());
        let Ok(()) = self.each(|row, inputs| {
            rows.push(row);
            sums.resize(rows.len() * self.row_len, F::of(0.));
            fold_scaled(inputs, weights, &mut sums[(rows.len() - 1) * self.row_len..]);
            Ok::<_, Infallible>(())
        });
        (rows, Cow::Owned(sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range<'a>(every_row: bool, replicas: &[(&'a [usize], &'a [f64])]) -> RowRange<'a, f64> {
        RowRange::new(1, 10, every_row, replicas.to_vec())
    }

    #[test]
    fn rows_are_added_up_over_the_replicas_that_have_them() {
        let replicas: [(&[usize], &[f64]); 2] = [(&[1, 4], &[1., 2.]), (&[0, 4, 9], &[3., 4., 5.])];
        let whole = range(false, &replicas);
        let (rows, sums) = whole.reduce(&[1., 10.]);
        assert_eq!((rows, &*sums), (vec![0, 1, 4, 9], &[30., 1., 42., 50.][..]));
        assert_eq!(range(false, &[(&[], &[]), (&[], &[])]).reduce(&[1., 1.]).0, Vec::<usize>::new());
    }

    #[test]
    fn rows_between_two_are_those_of_all_replicas() {
        let replicas: [(&[usize], &[f64]); 2] = [(&[1, 4], &[1., 2.]), (&[0, 4, 9], &[3., 4., 5.])];
        let some = range(false, &replicas).restrict(1..9);
        assert_eq!((some.first(), some.height(), some.work()), (1, 8, 2));
        assert_eq!((some.reduce(&[1., 10.])), (vec![0, 3], vec![1., 42.].into()));
        assert_eq!(range(true, &replicas).restrict(5..9).work(), 4);
    }

    #[test]
    fn a_split_has_complete_rows_and_the_last_part_has_the_rest() {
        let replicas: [(&[usize], &[f64]); 2] = [(&[1, 8], &[1., 2.]), (&[0, 4, 5], &[3., 4., 5.])];
        let mut rest = range(false, &replicas);
        assert_eq!(rest.work(), 3);
        // The guide is the second replica: its first row, and all rows before its second.
        let first = rest.split_front(1);
        assert_eq!((first.first(), first.elements(), rest.first(), rest.work()), (0, 4, 4, 2));
        assert_eq!(first.reduce(&[1., 1.]).0, [0, 1]);
        // The guide has no row after 5, but another replica has.
        let last = rest.split_front(2);
        assert_eq!((last.elements(), rest.elements(), rest.work()), (6, 0, 0));
        assert_eq!(last.reduce(&[1., 1.]).0, [0, 1, 4]);

        let mut rest = range(true, &replicas);
        assert_eq!((rest.work(), rest.split_front(4).elements(), rest.work()), (10, 4, 6));
        assert_eq!(rest.split_front(100).reduce(&[1., 1.]).0, [0, 1, 4]);
    }
}
