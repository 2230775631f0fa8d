//! Sums of the rows of several replicas, in the fixed order of sums. Rows may be in any order and may have duplicates.

use super::{RowMerge, Sum, fold_then};

/// A plan for summing rows: the rows that at least one replica has, and which of them must be added in the tree order
/// of [`fold`](super::fold). A plan depends only on the indices.
///
/// Rows with the same index are first added within each replica, and then over the replicas in the order of `fold`. If
/// a replica does not have the row, its row is treated as zero. The result is bit-identical to the sum of the
/// corresponding dense tensors.
#[derive(Clone, Debug)]
pub struct RowSum {
    merge: RowMerge,
    /// The position at which each replica's indices start in the concatenated list. The last entry is the total number
    /// of indices.
    starts: Vec<usize>,
    /// Whether a row must be added in the order of the tree, because adding its values one after another would produce
    /// a different sum. This is the case if at least three replicas have the row, or if one of them other than the
    /// first has it twice.
    in_tree: Vec<bool>,
    /// The positions, in the list of rows, of the rows that need the tree, in ascending order. Each has the start of
    /// its range in `positions`.
    trees: Vec<(usize, usize)>,
    positions: Vec<usize>,
}

impl RowSum {
    /// Creates the plan from the indices of each replica, in the order of replica ids.
    pub fn new(lists: &[&[usize]]) -> Self {
        let merge = RowMerge::new(&lists.concat());
        let ends = lists.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        });
        let starts: Vec<usize> = std::iter::once(0).chain(ends).collect();
        // For each row: the last replica that has it, counted from 1, and whether it is also the first one.
        let mut seen = vec![(0, true); merge.rows().len()];
        let mut in_tree = vec![false; seen.len()];
        for (replica, at) in starts.windows(2).enumerate() {
            for rank in &merge.ranks()[at[0]..at[1]] {
                let (last, first) = &mut seen[*rank];
                match *last {
                    0 => *last = replica + 1,
                    same if same == replica + 1 => in_tree[*rank] |= !*first,
                    _ => {
                        in_tree[*rank] |= !*first;
                        (*last, *first) = (replica + 1, false);
                    }
                }
            }
        }
        let (trees, positions) = of_trees(&in_tree, merge.ranks());
        Self { merge, starts, in_tree, trees, positions }
    }

    /// Returns the rows that at least one replica has, in ascending order.
    pub fn rows(&self) -> &[usize] {
        self.merge.rows()
    }

    /// Sums the rows of all replicas.
    ///
    /// For each replica, `parts` contains a row of `width` values for each index. The sums have one row for each of
    /// [`rows`](Self::rows). `out` receives the elements of the sums from position `start`, so several threads can
    /// share the work without changing the result. No sum is -0, because all replicas' rows are added to zeros.
    ///
    /// # Panics
    /// Panics if a part does not match the indices of its replica, or if `out` exceeds the sums.
    pub fn sum<T: Sum>(&self, parts: &[&[T]], width: usize, start: usize, out: &mut [T]) {
        let end = start + out.len();
        assert!(end <= self.rows().len() * width, "the sums end before the output does");
        assert!(
            parts.len() + 1 == self.starts.len()
                && parts.iter().zip(self.starts.windows(2)).all(|(p, at)| p.len() == (at[1] - at[0]) * width),
            "a row of values for each of the replica's indices"
        );
        if out.is_empty() {
            return;
        }
        self.one_after_another(parts, width, start, out);
        let row = width..end.div_ceil(width) * width;
        let first = self.trees.partition_point(|(rank, _)| *rank < start / width);
        let mut scratch = vec![T::ZERO; if first < self.trees.len() { parts.len() * width } else { 0 }];
        for (i, (rank, at)) in self.trees.iter().enumerate().skip(first) {
            if rank * width >= row.end {
                break;
            }
            let until = self.trees.get(i + 1).map_or(self.positions.len(), |(_, next)| *next);
            scratch.fill(T::ZERO);
            let mut replica = 0;
            for position in &self.positions[*at..until] {
                while *position >= self.starts[replica + 1] {
                    replica += 1;
                }
                let value = &parts[replica][(position - self.starts[replica]) * width..][..width];
                let sum = &mut scratch[replica * width..][..width];
                sum.iter_mut().zip(value).for_each(|(sum, value)| *sum = sum.plus(*value));
            }
            // Only a part of the first and the last row may be needed.
            let (from, to) = ((rank * width).max(start), (rank * width + width).min(end));
            let wanted = from - rank * width..to - rank * width;
            let inputs: Vec<&[T]> = scratch.chunks_exact(width).map(|sum| &sum[wanted.clone()]).collect();
            fold_then(&inputs, &mut out[from - start..to - start], |sum| sum.plus(T::ZERO));
        }
    }

    /// Sums the rows that do not need the tree: rows of one replica, or of two replicas if the second has a single
    /// value.
    fn one_after_another<T: Sum>(&self, parts: &[&[T]], width: usize, start: usize, out: &mut [T]) {
        let end = start + out.len();
        let (first, last) = (start / width, (end - 1) / width);
        let mut met = vec![false; last - first + 1];
        for (part, at) in parts.iter().zip(self.starts.windows(2)) {
            for (value, rank) in part.chunks_exact(width).zip(&self.merge.ranks()[at[0]..at[1]]) {
                let Some(met) = rank.checked_sub(first).and_then(|row| met.get_mut(row)) else { continue };
                if self.in_tree[*rank] {
                    continue;
                }
                let row = rank * width;
                let (from, to) = (row.max(start), (row + width).min(end));
                let (value, out) = (&value[from - row..to - row], &mut out[from - start..to - start]);
                if std::mem::replace(met, true) {
                    out.iter_mut().zip(value).for_each(|(sum, value)| *sum = sum.plus(*value))
                } else {
                    out.iter_mut().zip(value).for_each(|(sum, value)| *sum = T::ZERO.plus(*value))
                }
            }
        }
    }
}

/// Returns the rows that need the tree, each with the start of its range of positions; and all positions.
fn of_trees(in_tree: &[bool], ranks: &[usize]) -> (Vec<(usize, usize)>, Vec<usize>) {
    let mut count = vec![0; if in_tree.contains(&true) { in_tree.len() } else { 0 }];
    if count.is_empty() {
        return Default::default();
    }
    ranks.iter().filter(|rank| in_tree[**rank]).for_each(|rank| count[*rank] += 1);
    let (mut trees, mut end) = (Vec::new(), 0);
    for (rank, count) in count.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
        trees.push((rank, end));
        // From here on, this is the index of the next position of this row.
        end += std::mem::replace(count, end);
    }
    let mut positions = vec![0; end];
    for (position, rank) in ranks.iter().enumerate().filter(|(_, rank)| in_tree[**rank]) {
        positions[count[*rank]] = position;
        count[*rank] += 1;
    }
    (trees, positions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fold;
    use proptest::prelude::*;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn a_replicas_duplicates_and_its_place_in_the_tree() {
        // Expected are (big + 0) + (1 + 1), and big + (1 + 1): one after another, each 1 would vanish.
        let big = 16_777_216.0f32;
        let lists: [&[usize]; 4] = [&[5, 9], &[9, 9], &[5], &[2, 5]];
        let of = RowSum::new(&lists);
        let mut sums = [7.0; 3];
        of.sum(&[&[big, big], &[1.0, 1.0], &[1.0], &[3.0, 1.0]], 1, 0, &mut sums);
        assert_eq!((of.rows(), sums), (&[2, 5, 9][..], [3.0, big + 2.0, big + 2.0]));
    }

    #[test]
    fn nothing_and_rows_of_nothing() {
        RowSum::new(&[]).sum::<f32>(&[], 3, 0, &mut []);
        RowSum::new(&[&[], &[]]).sum::<f32>(&[&[], &[]], 3, 0, &mut []);
        let of = RowSum::new(&[&[4], &[4, 1, 1], &[4]]);
        of.sum::<f32>(&[&[], &[], &[]], 0, 0, &mut []);
        assert_eq!(of.rows(), [1, 4]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        // INV-7
        #[test]
        fn sums_of_rows_as_they_come_have_the_bits_of_the_dense_fold(
            counts in prop::collection::vec(prop_oneof![Just(0usize), 1usize..8, 50usize..150], 1..9),
            height in prop_oneof![1usize..6, 20usize..200],
            width in 1usize..9,
            each in 1usize..400,
            seed: u64,
        ) {
            let mut state = seed | 1;
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state >> 24
            };
            let value = |x: u64| match x % 8 {
                0 => -0.0,
                1 => 0.0,
                _ => x as f32 / 1e6 - 5e5,
            };
            let replicas: Vec<(Vec<usize>, Vec<f32>)> = counts
                .iter()
                .map(|count| {
                    let rows = (0..*count).map(|_| next() as usize % height).collect();
                    (rows, (0..count * width).map(|_| value(next())).collect())
                })
                .collect();
            let dense: Vec<Vec<f32>> = replicas
                .iter()
                .map(|(rows, values)| {
                    let mut all = vec![0.0; height * width];
                    for (row, values) in rows.iter().zip(values.chunks(width)) {
                        all[row * width..].iter_mut().zip(values).for_each(|(to, value)| *to += value);
                    }
                    all
                })
                .collect();
            let mut whole = vec![0.0; height * width];
            fold(&dense.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut whole);

            let lists: Vec<&[usize]> = replicas.iter().map(|(rows, _)| rows.as_slice()).collect();
            let parts: Vec<&[f32]> = replicas.iter().map(|(_, values)| values.as_slice()).collect();
            let of = RowSum::new(&lists);
            let mut sums = vec![7.0; of.rows().len() * width];
            for (i, out) in sums.chunks_mut(each).enumerate() {
                of.sum(&parts, width, i * each, out);
            }
            let expected: Vec<u32> = of.rows().iter().flat_map(|row| bits(&whole[row * width..][..width])).collect();
            prop_assert_eq!(bits(&sums), expected);
        }
    }
}
