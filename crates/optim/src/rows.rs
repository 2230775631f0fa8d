//! Gradients by row: merging duplicate rows, and the ranges of a table that an update by row visits.

use distribute_tensor::kernel::RowMerge;

use crate::error::same_length;
use crate::sweep::Span;
use crate::{Float, UpdateError};

/// Sums the values with equal indices. The result is a gradient for
/// [`RuleExt::update_rows`](crate::RuleExt::update_rows).
///
/// `values` contains `row_len` elements for each index. Returns the distinct indices in ascending order, and a row of
/// sums for each. The values of an index are added in order, so the result is bit-identical on all machines.
///
/// ```
/// let (rows, sums) = distribute_optim::merge_rows(&[7, 3, 7], &[1.0, 2.0, 30.0, 40.0, 0.5, 0.5], 2)?;
/// assert_eq!(rows, [3, 7]);
/// assert_eq!(sums, [30.0, 40.0, 1.5, 2.5]);
/// # Ok::<(), distribute_optim::UpdateError>(())
/// ```
///
/// # Errors
/// - [`NegativeIndex`](UpdateError::NegativeIndex): an index is negative.
/// - [`LengthMismatch`](UpdateError::LengthMismatch): `values` does not contain `row_len` elements for each index.
#[doc(alias = "tf.IndexedSlices")]
#[doc(alias = "IndexedSlices")]
pub fn merge_rows<F: Float>(
    indices: &[i64],
    values: &[F],
    row_len: usize,
) -> Result<(Vec<usize>, Vec<F>), UpdateError> {
    same_length("values of indices", indices.len().saturating_mul(row_len), values.len())?;
    let row = |(position, &index): (usize, &i64)| {
        usize::try_from(index).map_err(|_| UpdateError::NegativeIndex { index, position })
    };
    let merge = RowMerge::new(&indices.iter().enumerate().map(row).collect::<Result<Vec<_>, _>>()?);
    let mut sums = vec![F::ZERO; merge.rows().len() * row_len];
    merge.sum(values, row_len, 0, &mut sums);
    Ok((merge.into_rows(), sums))
}

/// Checks that a table with `len` elements consists of complete rows, that `rows` are strictly ascending rows of it,
/// and that `grads`, the number of elements of all gradients, is right.
pub(crate) fn check_rows(
    len: usize,
    row_len: usize,
    rows: &[usize],
    grads: usize,
) -> Result<(), UpdateError> {
    let count = len.checked_div(row_len).unwrap_or(0);
    same_length("table of whole rows", count * row_len, len)?;
    same_length("gradients of rows", rows.len().saturating_mul(row_len), grads)?;
    for pair in rows.windows(2) {
        if let &[previous, row] = pair
            && previous >= row
        {
            return Err(UpdateError::RowsOutOfOrder { previous, row });
        }
    }
    match rows.last() {
        // A table of empty rows may have any number of them.
        Some(&row) if row >= count && row_len > 0 => Err(UpdateError::RowOutOfRange { row, rows: count }),
        _ => Ok(()),
    }
}

/// Returns the ranges of the rows that have a gradient.
pub(crate) fn row_spans<'g, F>(
    row_len: usize,
    rows: &'g [usize],
    grads: &'g [F],
) -> impl Iterator<Item = Span<'g, F>> {
    // chunks_exact does not accept 0. In that case there are no gradients, and so no chunks.
    let grads = grads.chunks_exact(row_len.max(1));
    rows.iter()
        .zip(grads)
        .map(move |(&row, grad)| Span { at: row * row_len..row * row_len + row_len, grad: Some(grad) })
}

/// Returns ranges that cover a table with `len` elements: the rows with a gradient, and the gaps between them, which
/// have no gradient.
pub(crate) fn every_span<'g, F>(
    len: usize,
    row_len: usize,
    rows: &'g [usize],
    grads: &'g [F],
) -> impl Iterator<Item = Span<'g, F>> {
    let mut end = 0;
    let tail = rows.last().map_or(0, |&row| row * row_len + row_len);
    row_spans(row_len, rows, grads)
        .flat_map(move |span| {
            let gap = Span { at: end..span.at.start, grad: None };
            end = span.at.end;
            [gap, span]
        })
        .chain(std::iter::once(Span { at: tail..len, grad: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_summed_in_order_of_appearance() {
        // Another order would round these sums differently.
        let (big, small) = (16_777_216.0f32, 1.0f32);
        let (rows, sums) = merge_rows(&[5, 0, 5, 5], &[big, 9.0, small, small], 1).unwrap();
        assert_eq!((rows, sums), (vec![0, 5], vec![9.0, big]));
        let (_, sums) = merge_rows(&[5, 5, 5], &[small, small, big], 1).unwrap();
        assert_eq!(sums, [big + 2.0]);
    }

    #[test]
    fn merge_checks_its_input() {
        let error = merge_rows(&[1, -2], &[0.0f32; 4], 2).unwrap_err();
        assert_eq!(error.to_string(), "index -2 at position 1 is below zero: rows are counted from 0");
        let error = merge_rows(&[1, 2], &[0.0f32; 3], 2).unwrap_err();
        assert_eq!(error, UpdateError::LengthMismatch { what: "values of indices", expected: 4, found: 3 });
        assert_eq!(merge_rows::<f64>(&[], &[], 3).unwrap(), (vec![], vec![]));
        assert_eq!(merge_rows::<f64>(&[4, 4], &[], 0).unwrap(), (vec![4], vec![]));
    }

    #[test]
    fn every_run_covers_the_table_once() {
        let spans = |rows: &[usize], grads: &[f32]| -> Vec<_> {
            every_span(10, 2, rows, grads)
                .filter(|span| !span.at.is_empty())
                .map(|span| (span.at, span.grad.map(<[f32]>::to_vec)))
                .collect()
        };
        assert_eq!(spans(&[], &[]), [(0..10, None)]);
        assert_eq!(
            spans(&[1, 2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            [
                (0..2, None),
                (2..4, Some(vec![1.0, 2.0])),
                (4..6, Some(vec![3.0, 4.0])),
                (6..8, None),
                (8..10, Some(vec![5.0, 6.0])),
            ]
        );
    }
}
