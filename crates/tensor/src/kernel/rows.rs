//! The merge of rows on one replica. Each index then occurs once, in ascending order, with the sum of all its values.

use super::Sum;

/// The maximum ratio of table rows to merged rows at which a merge scans the complete table. Above this ratio, the
/// merge sorts the indices.
///
/// Both methods have the same result, so the choice only affects the time. It was measured on one core of a shared Xeon
/// (AVX-512) with float32 and random indices. The table below contains the median time in µs of the merge and its sums,
/// as "sorted / complete table":
///
/// | table | rows merged | table for each | width 1 | 8 | 32 | 128 |
/// |---|---|---|---|---|---|---|
/// | 1 000 | 100 000 | 0.01 | 890 / 585 | 1050 / 681 | 1339 / 982 | 6307 / 5703 |
/// | 1 000 | 1 000 | 1 | 15 / 7 | 16 / 7 | 19 / 10 | 35 / 26 |
/// | 100 000 | 100 000 | 1 | 1948 / 1140 | 2154 / 1326 | 3655 / 2348 | 11710 / 9115 |
/// | 10 000 | 1 000 | 10 | 16 / 8 | 16 / 8 | 20 / 11 | 38 / 30 |
/// | 100 000 | 10 000 | 10 | 107 / 86 | 113 / 88 | 183 / 137 | 817 / 693 |
/// | 1 000 000 | 100 000 | 10 | 1475 / 960 | 1750 / 1247 | 3573 / 2937 | 37258 / 37384 |
/// | 3 000 | 100 | 30 | 1.6 / 0.9 | 1.6 / 1.0 | 1.6 / 1.1 | 3.0 / 2.3 |
/// | 300 000 | 10 000 | 30 | 105 / 101 | 110 / 103 | 187 / 159 | 812 / 750 |
/// | 10 000 | 100 | 100 | 1.5 / 1.2 | 1.5 / 1.2 | 1.6 / 1.2 | 3.4 / 3.0 |
/// | 1 000 000 | 10 000 | 100 | 105 / 156 | 109 / 157 | 188 / 224 | 843 / 771 |
/// | 100 000 | 100 | 1000 | 1.5 / 2.7 | 1.5 / 2.7 | 1.6 / 2.9 | 2.9 / 4.2 |
/// | 1 000 000 | 1 000 | 1000 | 16 / 28 | 16 / 29 | 20 / 32 | 39 / 52 |
const SPARSE: usize = 32;

/// The plan of a merge: the merged rows, and the row to which each index belongs. It depends only on indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMerge {
    /// The indices that occur, in ascending order without duplicates.
    rows: Vec<usize>,
    /// The position of each index in `rows`.
    ranks: Vec<usize>,
}

impl RowMerge {
    /// Creates the plan from the indices of rows, in the order in which their values will be added.
    ///
    /// The plan takes 16 to 40 bytes per index, regardless of the size of the table.
    pub fn new(indices: &[usize]) -> Self {
        if indices.is_sorted() {
            return Self::of_sorted(indices.iter().copied().enumerate(), indices.len());
        }
        let height = indices.iter().max().map_or(0, |last| last.saturating_add(1));
        if height.div_ceil(SPARSE) <= indices.len() {
            Self::of_whole_table(indices, height)
        } else {
            Self::of_sorted(sorted(indices).into_iter(), indices.len())
        }
    }

    /// Creates the plan from pairs of position and index, which are sorted by index.
    fn of_sorted(pairs: impl Iterator<Item = (usize, usize)>, count: usize) -> Self {
        let (mut rows, mut ranks) = (Vec::with_capacity(count), vec![0; count]);
        for (position, index) in pairs {
            if rows.last() != Some(&index) {
                rows.push(index);
            }
            ranks[position] = rows.len() - 1;
        }
        Self { rows, ranks }
    }

    /// Creates the plan with a bitmap that has one bit per row of the table.
    fn of_whole_table(indices: &[usize], height: usize) -> Self {
        const BITS: usize = u64::BITS as usize;
        let mut words = vec![0u64; height.div_ceil(BITS)];
        for index in indices {
            words[index / BITS] |= 1 << (index % BITS);
        }
        let mut rows = Vec::with_capacity(indices.len());
        let mut before = Vec::with_capacity(words.len());
        for (i, word) in words.iter().enumerate() {
            before.push(rows.len());
            let mut left = *word;
            while left != 0 {
                rows.push(i * BITS + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
        let rank = |index: &usize| {
            let lower = (1 << (index % BITS)) - 1;
            before[index / BITS] + (words[index / BITS] & lower).count_ones() as usize
        };
        Self { ranks: indices.iter().map(rank).collect(), rows }
    }

    /// Returns the indices that occur, in ascending order without duplicates.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Converts the plan to the indices that occur, in ascending order without duplicates.
    pub fn into_rows(self) -> Vec<usize> {
        self.rows
    }

    /// Returns whether the indices are already in ascending order without duplicates, so there is nothing to sum.
    pub fn is_identity(&self) -> bool {
        self.rows.len() == self.ranks.len() && self.ranks.is_sorted()
    }

    /// Returns the position of each index in [`rows`](Self::rows).
    pub(super) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Sums the values with equal indices, in the order in which they occur.
    ///
    /// `values` contains a row of `width` elements for each index. The sums have one row for each of
    /// [`rows`](Self::rows). `out` receives the elements of the sums from position `start`, so several threads can
    /// share the work without changing the result. No sum is -0, because rows are added to zeros.
    ///
    /// # Panics
    /// Panics if `values` does not contain a row for each index, or if `out` exceeds the sums.
    pub fn sum<T: Sum>(&self, values: &[T], width: usize, start: usize, out: &mut [T]) {
        assert_eq!(values.len(), self.ranks.len() * width, "a row of values for each index");
        self.add_up(|position| position, values, width, start, out);
    }

    /// Acts like [`sum`](Self::sum), but several indices may share a row of values: `sources` contains the row of
    /// `values` for each index. The result is bit-identical to that of `sum` with copies of the rows.
    ///
    /// # Panics
    /// Panics if there is no source for an index, if a source exceeds `values`, or if `out` exceeds the sums.
    pub fn sum_shared<T: Sum>(
        &self,
        sources: &[usize],
        values: &[T],
        width: usize,
        start: usize,
        out: &mut [T],
    ) {
        assert_eq!(sources.len(), self.ranks.len(), "a source for each index");
        self.add_up(|position| sources[position], values, width, start, out);
    }

    fn add_up<T: Sum>(
        &self,
        source: impl Fn(usize) -> usize,
        values: &[T],
        width: usize,
        start: usize,
        out: &mut [T],
    ) {
        let end = start + out.len();
        assert!(end <= self.rows.len() * width, "the sums end before the output does");
        if out.is_empty() {
            return;
        }
        let (first, last) = (start / width, (end - 1) / width);
        let mut met = vec![false; last - first + 1];
        for (position, rank) in self.ranks.iter().enumerate() {
            let Some(met) = rank.checked_sub(first).and_then(|row| met.get_mut(row)) else { continue };
            // Only a part of the first and the last row may be needed.
            let (at, value) = (rank * width, source(position) * width);
            let (from, to) = (at.max(start), (at + width).min(end));
            let (value, out) =
                (&values[value + from - at..value + to - at], &mut out[from - start..to - start]);
            if std::mem::replace(met, true) {
                out.iter_mut().zip(value).for_each(|(sum, value)| *sum = sum.plus(*value))
            } else {
                out.iter_mut().zip(value).for_each(|(sum, value)| *sum = T::ZERO.plus(*value))
            }
        }
    }
}

/// Returns pairs of position and index, sorted by index and then by position.
fn sorted(indices: &[usize]) -> Vec<(usize, usize)> {
    // Counting sort by digits, from the lowest: for an embedding's batch of 8192 rows of 100 000, merging
    // takes half the time of a comparison sort. For short lists the counters cost more than they save.
    const BITS: u32 = 11;
    let mut pairs: Vec<_> = indices.iter().copied().enumerate().collect();
    if pairs.len() < 1 << BITS {
        // A stable sort detects lists that ascend already, and only merges them.
        pairs.sort_by_key(|(_, index)| *index);
        return pairs;
    }
    let used = usize::BITS - indices.iter().fold(0, |bits, index| bits | index).leading_zeros();
    let mut next_pairs = vec![(0, 0); pairs.len()];
    for shift in (0..used).step_by(BITS as usize) {
        let digit = |index: usize| (index >> shift) & ((1 << BITS) - 1);
        let mut next = [0; 1 << BITS];
        for (_, index) in &pairs {
            next[digit(*index)] += 1;
        }
        let mut start = 0;
        for next in &mut next {
            start += std::mem::replace(next, start);
        }
        for pair in &pairs {
            let next = &mut next[digit(pair.1)];
            next_pairs[*next] = *pair;
            *next += 1;
        }
        std::mem::swap(&mut pairs, &mut next_pairs);
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Returns the distinct indices in ascending order, and for each of them the sum of its values, which are added one
    /// after another.
    fn expected(indices: &[usize], values: &[f32], width: usize) -> (Vec<usize>, Vec<f32>) {
        let mut rows: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
        for (i, index) in indices.iter().enumerate() {
            let value = &values[i * width..(i + 1) * width];
            match rows.get_mut(index) {
                None => drop(rows.insert(*index, value.iter().map(|x| 0.0 + x).collect())),
                Some(sums) => sums.iter_mut().zip(value).for_each(|(sum, value)| *sum += value),
            }
        }
        (rows.keys().copied().collect(), rows.into_values().flatten().collect())
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed | 1;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 7
        }
    }

    #[test]
    fn duplicates_are_summed_in_order_of_appearance() {
        // In another order these sums would round to other values.
        let (big, small) = (16_777_216.0f32, 1.0f32);
        let merge = RowMerge::new(&[5, 0, 5, 5]);
        let mut sums = [0.0; 2];
        merge.sum(&[big, 9.0, small, small], 1, 0, &mut sums);
        assert_eq!((merge.rows(), sums), (&[0, 5][..], [9.0, big]));
        let mut sums = [0.0];
        RowMerge::new(&[5, 5, 5]).sum(&[small, small, big], 1, 0, &mut sums);
        assert_eq!(sums, [big + 2.0]);
    }

    #[test]
    fn a_sum_begins_with_zero_and_so_is_never_the_negative_one() {
        let mut sums = [1.0f32; 2];
        RowMerge::new(&[3, 4, 4]).sum(&[-0.0; 3], 1, 0, &mut sums);
        assert_eq!(bits(&sums), [0; 2]);
    }

    #[test]
    fn nothing_and_rows_of_nothing() {
        let mut none: [f32; 0] = [];
        let merge = RowMerge::new(&[]);
        merge.sum(&[], 3, 0, &mut none);
        assert!(merge.rows().is_empty() && merge.is_identity());
        let merge = RowMerge::new(&[4, 4]);
        merge.sum(&none.clone(), 0, 0, &mut none);
        assert_eq!(merge.into_rows(), [4]);
        assert_eq!(RowMerge::new(&[usize::MAX, 0]).rows(), [0, usize::MAX]);
    }

    #[test]
    fn merged_rows_are_recognized() {
        assert!(RowMerge::new(&[1, 5, 9]).is_identity());
        assert!(!RowMerge::new(&[1, 5, 5]).is_identity());
        assert!(!RowMerge::new(&[5, 1]).is_identity());
    }

    #[test]
    fn sorted_and_whole_table_know_the_same() {
        for (count, height) in
            [(1, 1), (3000, 1), (3000, 50), (3000, 2048), (5000, 100_000), (100, 1_000_000)]
        {
            let mut next = random(count as u64);
            let indices: Vec<usize> = (0..count).map(|_| next() as usize % height).collect();
            let whole = RowMerge::of_whole_table(&indices, height);
            assert_eq!(
                RowMerge::of_sorted(sorted(&indices).into_iter(), count),
                whole,
                "{count} of {height}"
            );
            assert_eq!(RowMerge::new(&indices), whole);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        // Below and above the crossover, short and long lists, split into any ranges.
        // INV-7
        #[test]
        fn the_bits_are_those_of_one_addition_after_another(
            count in prop_oneof![0usize..70, 2040usize..2100],
            height in prop_oneof![1usize..40, 1000usize..3000, 40_000usize..50_000],
            width in 1usize..5,
            each in 1usize..3000,
            seed: u64,
        ) {
            let mut next = random(seed);
            let indices: Vec<usize> = (0..count).map(|_| next() as usize % height).collect();
            let values: Vec<f32> = (0..count * width).map(|_| next() as f32 / 1e12 - 3e4).collect();
            let (rows, sums) = expected(&indices, &values, width);
            let merge = RowMerge::new(&indices);
            prop_assert_eq!(merge.rows(), rows);
            let mut got = vec![7.0; sums.len()];
            for (i, out) in got.chunks_mut(each).enumerate() {
                merge.sum(&values, width, i * each, out);
            }
            prop_assert_eq!(bits(&got), bits(&sums));
        }

        #[test]
        fn shared_rows_are_summed_as_their_copies(
            sources in prop::collection::vec(0usize..7, 0..60),
            width in 1usize..5,
            seed: u64,
        ) {
            let mut next = random(seed);
            let indices: Vec<usize> = sources.iter().map(|_| next() as usize % 20).collect();
            let values: Vec<f32> = (0..7 * width).map(|_| next() as f32 / 1e12 - 3e4).collect();
            let copies: Vec<f32> =
                sources.iter().flat_map(|source| &values[source * width..][..width]).copied().collect();
            let merge = RowMerge::new(&indices);
            let (mut want, mut got) = (vec![0.0; merge.rows().len() * width], vec![7.0; merge.rows().len() * width]);
            merge.sum(&copies, width, 0, &mut want);
            merge.sum_shared(&sources, &values, width, 0, &mut got);
            prop_assert_eq!(bits(&got), bits(&want));
        }
    }
}
