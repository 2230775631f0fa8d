//! Iteration over the rows of several replicas, so that rows with the same index can be added in a fixed order.

/// Calls `then` with each row that at least one replica has, in ascending order, and with the row's values on each
/// replica. If a replica does not have the row, its values are zeros. Adding the values with
/// [`fold_scaled`](super::fold_scaled) is bit-identical to adding dense tensors, because a replica without the row
/// keeps its position in the tree of sums.
///
/// For each replica, `parts` contains the indices of its rows, in ascending order and without duplicates, as returned
/// by [`RowMerge::rows`](super::RowMerge::rows), and `width` values for each row. Nothing is copied, and the values are
/// in the cache when `then` is called.
///
/// # Errors
/// Returns the first error of `then`, after which no more rows are processed.
///
/// # Panics
/// Panics if the rows of a replica are not in ascending order or occur twice, or do not have `width` values each.
pub fn each_row<T: Copy + Default, E>(
    parts: &[(&[usize], &[T])],
    width: usize,
    mut then: impl FnMut(usize, &[&[T]]) -> Result<(), E>,
) -> Result<(), E> {
    for (rows, values) in parts {
        assert!(rows.is_sorted_by(|a, b| a < b), "rows that ascend, each once");
        assert_eq!(values.len(), rows.len() * width, "a row of values for each of the replica's rows");
    }
    let zeros = vec![T::default(); width];
    let mut rest = parts.to_vec();
    let mut inputs = vec![zeros.as_slice(); parts.len()];
    while let Some(row) = rest.iter().filter_map(|(rows, _)| rows.first().copied()).min() {
        for (input, (rows, values)) in inputs.iter_mut().zip(&mut rest) {
            *input = match rows.split_first() {
                Some((first, after)) if *first == row => {
                    let (mine, others) = values.split_at(width);
                    (*rows, *values) = (after, others);
                    mine
                }
                _ => &zeros,
            };
        }
        then(row, &inputs)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fold_scaled;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    /// Returns the rows, and their weighted sums.
    fn sums(parts: &[(&[usize], &[f32])], weights: &[f32], width: usize) -> (Vec<usize>, Vec<f32>) {
        let (mut rows, mut sums) = (Vec::new(), Vec::new());
        let Ok(()) = each_row(parts, width, |row, inputs| {
            let mut sum = vec![7.0; width];
            fold_scaled(inputs, weights, &mut sum);
            rows.push(row);
            sums.extend(sum);
            Ok::<_, Infallible>(())
        });
        (rows, sums)
    }

    #[test]
    fn a_replica_without_a_row_keeps_its_place_in_the_tree() {
        // Expected is (big + 0) + (1 + 1): one after another, each 1 would vanish.
        let big = 16_777_216.0f32;
        let parts: [(&[usize], &[f32]); 4] =
            [(&[5], &[big]), (&[], &[]), (&[5], &[1.0]), (&[2, 5], &[3.0, 1.0])];
        assert_eq!(sums(&parts, &[1.0; 4], 1), (vec![2, 5], vec![3.0, big + 2.0]));
        assert_eq!(sums(&parts, &[1.0, 1.0, 2.0, 2.0], 1), (vec![2, 5], vec![6.0, big + 4.0]));
    }

    #[test]
    fn nothing_and_rows_of_nothing() {
        assert_eq!(sums(&[], &[], 3), (vec![], vec![]));
        assert_eq!(sums(&[(&[], &[]), (&[], &[])], &[1.0; 2], 3), (vec![], vec![]));
        assert_eq!(sums(&[(&[4], &[]), (&[1, 4], &[])], &[1.0; 2], 0), (vec![1, 4], vec![]));
    }

    #[test]
    fn an_error_ends_it() {
        let mut seen = Vec::new();
        let result = each_row(&[(&[1, 2, 3], &[0.0f32; 3])], 1, |row, _| {
            seen.push(row);
            if row == 2 { Err("two") } else { Ok(()) }
        });
        assert_eq!((result, seen), (Err("two"), vec![1, 2]));
    }

    /// Returns the rows and values of a replica: numbers whose sum depends on the order, zeros of both signs,
    /// and some that vanish when they are weighted.
    fn replica(height: usize, width: usize, percent: u64, seed: u64) -> (Vec<usize>, Vec<f32>) {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 24
        };
        let rows: Vec<usize> = (0..height).filter(|_| next() % 100 < percent).collect();
        let value = |x: u64| match x % 8 {
            0 => -0.0,
            1 => 0.0,
            2 => -f32::from_bits(1),
            _ => x as f32 / 1e6 - 5e5,
        };
        let values = (0..rows.len() * width).map(|_| value(next())).collect();
        (rows, values)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        // INV-7
        #[test]
        fn sums_of_rows_have_the_bits_of_the_dense_fold(
            percents in prop::collection::vec(prop_oneof![Just(0u64), 1u64..99, Just(100)], 1..9),
            height in prop_oneof![1usize..40, 1000usize..1500],
            width in prop_oneof![1usize..6, 1000usize..1100],
            weights in prop::collection::vec(0f32..1.0, 8),
            seed: u64,
        ) {
            let height = height.min(40_000 / width);
            let replicas: Vec<_> =
                percents.iter().zip(1u64..).map(|(percent, r)| replica(height, width, *percent, seed ^ (r << 1))).collect();
            let of_replica = |(rows, values): &(Vec<usize>, Vec<f32>)| {
                let mut all = vec![0.0; height * width];
                for (row, values) in rows.iter().zip(values.chunks(width)) {
                    all[row * width..][..width].copy_from_slice(values);
                }
                all
            };
            let dense: Vec<Vec<f32>> = replicas.iter().map(of_replica).collect();
            let parts: Vec<(&[usize], &[f32])> =
                replicas.iter().map(|(rows, values)| (rows.as_slice(), values.as_slice())).collect();
            let weights = &weights[..parts.len()];
            let (rows, scaled) = sums(&parts, weights, width);
            prop_assert!(rows.is_sorted_by(|a, b| a < b));
            let any = |row: &usize| replicas.iter().any(|(rows, _)| rows.contains(row));
            prop_assert_eq!(rows.len(), (0..height).filter(any).count());
            let of_rows = |whole: &[f32]| -> Vec<u32> {
                rows.iter().flat_map(|row| bits(&whole[row * width..][..width])).collect()
            };
            let mut whole = vec![0.0; height * width];
            fold_scaled(&dense.iter().map(Vec::as_slice).collect::<Vec<_>>(), weights, &mut whole);
            prop_assert_eq!(bits(&scaled), of_rows(&whole));
        }
    }
}
