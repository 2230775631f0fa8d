//! A range of a table's rows with the sparse gradients of all replicas that fall into it.

use distribute_base::internal::Number;
use distribute_tensor::kernel::{each_row, fold_scaled};
use std::borrow::Cow;
use std::convert::Infallible;
use std::ops::Range;

/// A range of a table's rows, and for each replica that has a sparse gradient of the table its rows in that range.
pub(crate) struct RowRange<'a, F> {
    pub(crate) row_len: usize,
    first: usize,
    height: usize,
    /// Whether the rule visits rows without a gradient too.
    every_row: bool,
    /// Row numbers in the whole table, ascending, and a row of values for each.
    of_replicas: Vec<(&'a [usize], &'a [F])>,
    /// The replica that has most rows: the range is cut where its list is.
    guide: usize,
}

impl<'a, F> RowRange<'a, F> {
    /// All of a table of `height` rows.
    pub(crate) fn new(
        row_len: usize,
        height: usize,
        every_row: bool,
        of_replicas: Vec<(&'a [usize], &'a [F])>,
    ) -> Self {
        let guide = (0..of_replicas.len()).max_by_key(|r| of_replicas[*r].0.len()).unwrap_or(0);
        Self { row_len, first: 0, height, every_row, of_replicas, guide }
    }

    /// Restricts it to these rows, which are counted in the whole table.
    pub(crate) fn between(self, rows: Range<usize>) -> Self {
        let among = |(numbers, values): (&'a [usize], &'a [F])| {
            let at = |border: usize| numbers.partition_point(|row| *row < border);
            let (from, to) = (at(rows.start), at(rows.end));
            (&numbers[from..to], &values[from * self.row_len..to * self.row_len])
        };
        let of_replicas = self.of_replicas.into_iter().map(among).collect();
        Self { first: rows.start, ..Self::new(self.row_len, rows.len(), self.every_row, of_replicas) }
    }

    pub(crate) fn elements(&self) -> usize {
        // The height of a table of ids is beyond what any memory has.
        self.height.saturating_mul(self.row_len)
    }

    /// Returns the number of rows that it covers, with a gradient or without.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// The first row.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Returns roughly the number of elements that will be visited.
    pub(crate) fn work(&self) -> usize {
        if self.every_row { self.elements() } else { self.guide().len() * self.row_len }
    }

    /// Takes about that much work off the start; all of it where that is all there is, and whole rows.
    pub(crate) fn cut(&mut self, work: usize) -> Self {
        let (rows, end) = (work.div_ceil(self.row_len.max(1)), self.first + self.height);
        let border = if self.every_row {
            end.min(self.first + rows)
        } else {
            // Rows of other replicas may be beyond the last one of this.
            self.guide().get(rows).copied().unwrap_or(end)
        };
        let row_len = self.row_len;
        let cut = |(rows, values): &mut (&'a [usize], &'a [F])| {
            let count = rows.partition_point(|row| *row < border);
            let rows = rows.split_off(..count).unwrap_or_default();
            (rows, values.split_off(..count * row_len).unwrap_or_default())
        };
        let of_replicas = self.of_replicas.iter_mut().map(cut).collect();
        let taken = Self { height: border - self.first, of_replicas, ..*self };
        (self.first, self.height) = (border, end - border);
        taken
    }

    fn guide(&self) -> &'a [usize] {
        self.of_replicas.get(self.guide).map_or(&[], |(rows, _)| rows)
    }
}

impl<F: Number> RowRange<'_, F> {
    /// The rows of a single replica, counted from the first of the range, and their values: where there is nothing to
    /// add up.
    pub(crate) fn only(&self, weights: &[F]) -> Option<(Vec<usize>, &[F])> {
        match (self.of_replicas.as_slice(), weights) {
            ([(rows, values)], [weight]) if *weight == F::of(1.) => {
                Some((rows.iter().map(|row| row - self.first).collect(), values))
            }
            _ => None,
        }
    }

    /// Calls `then` with each row that any replica has, counted from the first of the range, and its values on each
    /// replica, whose weighted sum has the bits of that of dense gradients.
    pub(crate) fn each<E>(&self, mut then: impl FnMut(usize, &[&[F]]) -> Result<(), E>) -> Result<(), E> {
        each_row(&self.of_replicas, self.row_len, |row, inputs| then(row - self.first, inputs))
    }

    /// The rows that any replica has, counted from the first of the range, and their weighted sums.
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

    fn range<'a>(every_row: bool, of_replicas: &[(&'a [usize], &'a [f64])]) -> RowRange<'a, f64> {
        RowRange::new(1, 10, every_row, of_replicas.to_vec())
    }

    #[test]
    fn rows_are_added_up_over_the_replicas_that_have_them() {
        let of_replicas: [(&[usize], &[f64]); 2] = [(&[1, 4], &[1., 2.]), (&[0, 4, 9], &[3., 4., 5.])];
        let whole = range(false, &of_replicas);
        let (rows, sums) = whole.reduce(&[1., 10.]);
        assert_eq!((rows, &*sums), (vec![0, 1, 4, 9], &[30., 1., 42., 50.][..]));
        assert_eq!(range(false, &[(&[], &[]), (&[], &[])]).reduce(&[1., 1.]).0, Vec::<usize>::new());
    }

    #[test]
    fn rows_between_two_are_those_of_all_replicas() {
        let of_replicas: [(&[usize], &[f64]); 2] = [(&[1, 4], &[1., 2.]), (&[0, 4, 9], &[3., 4., 5.])];
        let some = range(false, &of_replicas).between(1..9);
        assert_eq!((some.first(), some.height(), some.work()), (1, 8, 2));
        assert_eq!((some.reduce(&[1., 10.])), (vec![0, 3], vec![1., 42.].into()));
        assert_eq!(range(true, &of_replicas).between(5..9).work(), 4);
    }

    #[test]
    fn a_cut_takes_whole_rows_and_the_last_takes_what_is_left() {
        let of_replicas: [(&[usize], &[f64]); 2] = [(&[1, 8], &[1., 2.]), (&[0, 4, 5], &[3., 4., 5.])];
        let mut rest = range(false, &of_replicas);
        assert_eq!(rest.work(), 3);
        // The guide is the second: its first row, and all before its second.
        let first = rest.cut(1);
        assert_eq!((first.first(), first.elements(), rest.first(), rest.work()), (0, 4, 4, 2));
        assert_eq!(first.reduce(&[1., 1.]).0, [0, 1]);
        // The guide has no row after 5, but another replica has.
        let last = rest.cut(2);
        assert_eq!((last.elements(), rest.elements(), rest.work()), (6, 0, 0));
        assert_eq!(last.reduce(&[1., 1.]).0, [0, 1, 4]);

        let mut rest = range(true, &of_replicas);
        assert_eq!((rest.work(), rest.cut(4).elements(), rest.work()), (10, 4, 6));
        assert_eq!(rest.cut(100).reduce(&[1., 1.]).0, [0, 1, 4]);
    }
}
