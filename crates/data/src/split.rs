//! The splitting of batches into per-replica batches.

use crate::plan::layout::check_replicas;
use crate::{Error, Result, SplitRule};
use distribute_tensor::{Leaf, Nest, Tree};
use std::ops::Range;

/// Splits a batch along axis 0 into `pieces` per-replica batches, by the given rule. The results are views if
/// possible.
///
/// A leaf of shape `[b, …]` becomes one leaf of shape `[bₖ, …]` in each per-replica batch `k`, where `bₖ` is the number
/// of rows of that batch. If `bₖ` is 0, the per-replica batch has tensors without rows, rather than missing values.
/// Concatenated in order, the results are equal to the batch.
///
/// # Errors
///
/// - [`Error::NotBatched`]: a leaf is a scalar, as in elements of a dataset without
///   [`batch`](crate::Dataset::batch), or there is no leaf.
/// - [`Error::UnequalRows`]: leaves have different numbers of rows.
/// - [`Error::Parameter`]: there are more than 65536 pieces.
/// - [`Error::Type`]: a per-replica batch cannot be converted to `T`.
///
/// ```
/// use distribute_data::{SplitRule, split};
/// use distribute_tensor::HostTensor;
///
/// let batch = HostTensor::vector(vec![5i64, 6, 7, 8]);
/// let pieces = split(batch, 3, SplitRule::Even)?;
/// assert_eq!(pieces.iter().map(|p| p.dims()[0]).collect::<Vec<_>>(), [2, 1, 1]);
/// # Ok::<(), distribute_data::Error>(())
/// ```
pub fn split<T: Nest>(batch: T, pieces: usize, rule: SplitRule) -> Result<Vec<T>> {
    let pieces = split_batch(&batch.into_tree(), pieces, rule)?;
    let typed = |(index, piece)| {
        T::from_tree(piece).map_err(|source| Error::Type { operation: "split a batch", index, source })
    };
    pieces.into_iter().enumerate().map(typed).collect()
}

/// Splits a batch like [`split`]. This is for batches whose structure is known only at run time.
///
/// # Errors
///
/// Returns the errors of [`split`], except [`Error::Type`].
pub fn split_batch(batch: &Tree<Leaf>, pieces: usize, rule: SplitRule) -> Result<Vec<Tree<Leaf>>> {
    let rows = batch_rows(batch)?;
    check_replicas("split a batch", "the number of pieces", pieces)?;
    pieces_of(batch, &rule.pieces(rows, pieces))
}

/// Returns a batch for each of the given ranges of rows.
pub(crate) fn pieces_of(batch: &Tree<Leaf>, pieces: &[Range<usize>]) -> Result<Vec<Tree<Leaf>>> {
    pieces.iter().map(|piece| Ok(batch.narrow_rows(piece.start, piece.len())?)).collect()
}

/// Returns the number of rows of a batch that is to be split over replicas.
pub(crate) fn batch_rows(batch: &Tree<Leaf>) -> Result<usize> {
    rows(batch, "split a batch").map_err(|error| match error {
        Error::Scalar { path, .. } => Error::NotBatched { what: format!("{path} of an element is a scalar") },
        Error::NoTensor { found, .. } => {
            Error::NotBatched { what: format!("an element ({found}) holds no tensor") }
        }
        other => other,
    })
}

/// Returns the number of rows, which all leaves must have in common. Errors contain `operation`.
///
/// `Tree::rows` returns the same number. The errors here distinguish a scalar, for which a `batch` is missing,
/// from leaves that differ, which is a mistake in the data.
pub(crate) fn rows(tree: &Tree<Leaf>, operation: &'static str) -> Result<usize> {
    let mut first: Option<(String, usize)> = None;
    tree.visit(&mut |path, leaf| {
        let Some(rows) = leaf.dims().first().copied() else {
            return Err(Error::Scalar { operation, path: path() });
        };
        match &first {
            None => first = Some((path(), rows)),
            Some((_, first)) if *first == rows => {}
            Some((first_path, first)) => {
                let (first_path, first, path) = (first_path.clone(), *first, path());
                return Err(Error::UnequalRows { operation, first_path, first, path, rows });
            }
        }
        Ok(())
    })?;
    first.map(|(_, rows)| rows).ok_or_else(|| Error::NoTensor { operation, found: tree.kind() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_tensor::HostTensor;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_leaf_is_cut_and_empty_pieces_keep_their_shape() {
        let x = HostTensor::new((0..6).map(|i| i as f32).collect::<Vec<_>>(), [2, 3]).unwrap();
        let y = HostTensor::vector(vec![10i64, 20]);
        let pieces = split((x, y), 3, SplitRule::Even).unwrap();
        assert_eq!(pieces[1].0.as_slice::<f32>().unwrap(), [3., 4., 5.]);
        assert_eq!(pieces[1].1.as_slice::<i64>().unwrap(), [20]);
        assert_eq!((pieces[2].0.dims(), pieces[2].1.dims()), (&[0, 3][..], &[0][..]));
    }

    #[test]
    fn the_error_of_single_elements_advises_batching() {
        let error = split((HostTensor::vector(vec![1f32; 4]), 3i64), 2, SplitRule::Even).unwrap_err();
        let expected = "value[1] of an element is a scalar, so it cannot be split over replicas: call \
                        `.batch(global_batch_size)` on the dataset first";
        assert_eq!(error.to_string(), expected);
        // With one replica as well: the number of replicas must not decide whether a program is right.
        assert!(matches!(split(7i64, 1, SplitRule::Even), Err(Error::NotBatched { .. })));
        assert!(matches!(split((), 2, SplitRule::Even), Err(Error::NotBatched { .. })));
    }

    #[test]
    fn unequal_rows_name_both_leaves() {
        let batch = BTreeMap::from([
            ("x".to_string(), HostTensor::vector(vec![1f32; 4])),
            ("y".to_string(), HostTensor::vector(vec![1f32; 3])),
        ]);
        let error = split(batch, 2, SplitRule::Even).unwrap_err();
        assert_eq!(
            error.to_string(),
            "split a batch needs equal sizes of axis 0: value.x has 4 rows, value.y has 3"
        );
    }

    proptest! {
        // INV-10
        #[test]
        fn the_pieces_are_the_batch(rows in 0usize..50, pieces in 1usize..9, tensorflow: bool) {
            let rule = if tensorflow { SplitRule::TensorFlow } else { SplitRule::Even };
            let ids: Vec<i64> = (0..rows as i64).collect();
            let cut = split(HostTensor::vector(ids.clone()), pieces, rule).unwrap();
            prop_assert_eq!(cut.len(), pieces);
            let together: Vec<i64> = cut.iter().flat_map(|p| p.as_slice::<i64>().unwrap().to_vec()).collect();
            prop_assert_eq!(together, ids);
        }
    }
}
