//! The weighted sum of the merged rows of several replicas, in the one order of sums.

use super::{RowMerge, Scale, Sum, fold_scaled};

/// Elements of a block of rows: 4 KiB of `f32`.
const BLOCK: usize = 1024;

/// Which rows any replica has: what is known of a sum before a value is read.
///
/// A replica without a row counts as zero there. So the sums have the bits of those of dense tensors, and adding up within
/// a group of replicas first changes none where [`fold`](super::fold) of dense tensors would not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFold {
    merge: RowMerge,
    /// For each replica, where its ranks begin; at last, how many there are.
    starts: Vec<usize>,
}

impl RowFold {
    /// Looks at the rows of replicas, in the order of their ids: of each those it has, ascending and each once, as
    /// [`RowMerge::rows`] gives them.
    ///
    /// # Panics
    /// When the rows of a replica don't ascend.
    pub fn new(lists: &[&[usize]]) -> Self {
        assert!(lists.iter().all(|list| list.is_sorted_by(|a, b| a < b)), "rows that ascend, each once");
        let ends = lists.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        });
        Self { merge: RowMerge::new(&lists.concat()), starts: std::iter::once(0).chain(ends).collect() }
    }

    /// The rows that any replica has, ascending.
    pub fn rows(&self) -> &[usize] {
        self.merge.rows()
    }

    /// Sums the weighted rows of all replicas, in the order of [`fold_scaled`].
    ///
    /// `parts` hold, for each replica, a row of `width` values for each of its rows. The sums are a row for each of
    /// [`rows`](Self::rows); `out` is filled with those elements of them that begin at `start`. So several threads may
    /// share the work, and the bits don't depend on how they cut it.
    ///
    /// # Panics
    /// When a part doesn't fit its replica's rows, `out` goes beyond the sums, or there are not as many weights as replicas.
    pub fn sum_scaled<F: Scale>(
        &self,
        parts: &[&[F]],
        weights: &[F],
        width: usize,
        start: usize,
        out: &mut [F],
    ) {
        self.blocks(parts, width, start, out, |inputs, out| fold_scaled(inputs, weights, out));
    }

    /// Has `fold` sum block by block, where each replica has every row.
    fn blocks<T: Sum>(
        &self,
        parts: &[&[T]],
        width: usize,
        start: usize,
        out: &mut [T],
        fold: impl Fn(&[&[T]], &mut [T]),
    ) {
        let end = start + out.len();
        assert!(end <= self.rows().len() * width, "the sums end before the output does");
        assert!(
            parts.len() + 1 == self.starts.len()
                && parts.iter().zip(self.starts.windows(2)).all(|(p, at)| p.len() == (at[1] - at[0]) * width),
            "a row of values for each of the replica's rows"
        );
        if out.is_empty() {
            return;
        }
        let (height, last) = ((BLOCK / width).max(1), end.div_ceil(width));
        let mut spread = vec![Vec::new(); parts.len()];
        let mut rest = out;
        for first in (start / width..last).step_by(height) {
            let rows = first..last.min(first + height);
            // Of the first and the last row only a part may be wanted.
            let wanted =
                start.max(rows.start * width) - first * width..end.min(rows.end * width) - first * width;
            let (block, after) = rest.split_at_mut(wanted.len());
            let inputs =
                parts.iter().zip(self.starts.windows(2)).zip(&mut spread).map(|((part, at), spread)| {
                    let ranks = &self.merge.ranks()[at[0]..at[1]];
                    let from = ranks.partition_point(|rank| *rank < rows.start);
                    let ranks = &ranks[from..];
                    let ranks = &ranks[..ranks.partition_point(|rank| *rank < rows.end)];
                    let values = &part[from * width..(from + ranks.len()) * width];
                    if ranks.len() == rows.len() {
                        return &values[wanted.clone()];
                    }
                    spread.clear();
                    spread.resize(rows.len() * width, T::ZERO);
                    for (rank, row) in ranks.iter().zip(values.chunks_exact(width)) {
                        spread[(rank - rows.start) * width..][..width].copy_from_slice(row);
                    }
                    &spread[wanted.clone()]
                });
            fold(&inputs.collect::<Vec<_>>(), block);
            rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn a_replica_without_a_row_keeps_its_place_in_the_tree() {
        // As (big + 0) + (1 + 1): one after another, each 1 would vanish.
        let big = 16_777_216.0f32;
        let fold = RowFold::new(&[&[5], &[], &[5], &[2, 5]]);
        let mut sums = [7.0; 2];
        fold.sum_scaled(&[&[big], &[], &[1.0], &[3.0, 1.0]], &[1.0; 4], 1, 0, &mut sums);
        assert_eq!((fold.rows(), sums), (&[2, 5][..], [3.0, big + 2.0]));
        fold.sum_scaled(&[&[big], &[], &[1.0], &[3.0, 1.0]], &[1.0, 1.0, 2.0, 2.0], 1, 0, &mut sums);
        assert_eq!(sums, [6.0, big + 4.0]);
    }

    #[test]
    fn nothing_and_rows_of_nothing() {
        RowFold::new(&[]).sum_scaled::<f32>(&[], &[], 3, 0, &mut []);
        RowFold::new(&[&[], &[]]).sum_scaled::<f32>(&[&[], &[]], &[1.0; 2], 3, 0, &mut []);
        let fold = RowFold::new(&[&[4], &[1, 4]]);
        fold.sum_scaled::<f32>(&[&[], &[]], &[1.0; 2], 0, 0, &mut []);
        assert_eq!(fold.rows(), [1, 4]);
    }

    /// The rows and values of a replica: numbers whose sum depends on the order, zeros of both signs, and some that
    /// vanish when they are weighted.
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
            each in 1usize..3000,
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
            let lists: Vec<&[usize]> = replicas.iter().map(|(rows, _)| rows.as_slice()).collect();
            let parts: Vec<&[f32]> = replicas.iter().map(|(_, values)| values.as_slice()).collect();
            let weights = &weights[..parts.len()];
            let of = RowFold::new(&lists);
            let len = of.rows().len() * width;
            let mut scaled = vec![7.0; len];
            for (i, out) in scaled.chunks_mut(each).enumerate() {
                of.sum_scaled(&parts, weights, width, i * each, out);
            }
            let of_rows = |whole: &[f32]| -> Vec<u32> {
                of.rows().iter().flat_map(|row| bits(&whole[row * width..][..width])).collect()
            };
            let mut whole = vec![0.0; height * width];
            fold_scaled(&dense.iter().map(Vec::as_slice).collect::<Vec<_>>(), weights, &mut whole);
            prop_assert_eq!(bits(&scaled), of_rows(&whole));
        }
    }
}
