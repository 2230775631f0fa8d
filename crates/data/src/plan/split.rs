//! [`SplitRule`]: the splitting of a batch of rows over replicas.

// - **INV-10** The parts of a batch, in the order of replica ids, are the batch, for any number of workers that
//   share the replicas (unless workers read separate files). Tests: `data/src/plan/split.rs`, `data/src/split.rs`,
//   `clusters/multi_worker/input.rs`.

use std::ops::Range;

/// The rule by which a global batch is split over replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum SplitRule {
    /// The split is even: with `b` rows and `n` replicas, the first `b` mod `n` replicas get ⌈`b`/`n`⌉ rows, and
    /// the others ⌊`b`/`n`⌋.
    ///
    /// No two replicas differ by more than one row, for any batch size. A shorter last batch is split in the same
    /// way.
    #[default]
    Even,
    /// The split is the same as in TensorFlow for sources in memory: ⌈`b`/`n`⌉ rows for each replica, as long as there
    /// are any. The last replicas may therefore get fewer rows or none (4 rows over 3 replicas: 2, 2, 0). Datasets
    /// created by a function end as in TensorFlow; see [`UnevenEnds::PadEmpty`](crate::UnevenEnds::PadEmpty).
    ///
    /// (TensorFlow splits batches of files differently; [`recut`](super::recut) computes those sizes.)
    TensorFlow,
}

impl SplitRule {
    /// Splits a batch of `rows` rows into `pieces` per-replica batches, and returns the range of rows of each.
    /// The ranges are contiguous, in order, and together cover the batch. Ranges may be empty.
    ///
    /// ```
    /// use distribute_data::SplitRule;
    /// assert_eq!(SplitRule::Even.pieces(4, 3), [0..2, 2..3, 3..4]);
    /// assert_eq!(SplitRule::TensorFlow.pieces(4, 3), [0..2, 2..4, 4..4]);
    /// ```
    pub fn pieces(self, rows: usize, pieces: usize) -> Vec<Range<usize>> {
        (0..pieces).map(|k| self.start(rows, pieces, k)..self.start(rows, pieces, k + 1)).collect()
    }

    /// Returns the range of rows of per-replica batch `piece` of `pieces`. The range is empty if `piece` is out
    /// of range.
    pub fn piece(self, rows: usize, pieces: usize, piece: usize) -> Range<usize> {
        if piece < pieces {
            self.start(rows, pieces, piece)..self.start(rows, pieces, piece + 1)
        } else {
            rows..rows
        }
    }

    /// Returns the index of the first row of per-replica batch `k`. `pieces` must not be 0.
    fn start(self, rows: usize, pieces: usize, k: usize) -> usize {
        match self {
            SplitRule::Even => (rows / pieces) * k + k.min(rows % pieces),
            SplitRule::TensorFlow => rows.div_ceil(pieces).saturating_mul(k).min(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(rule: SplitRule, rows: usize, pieces: usize) -> Vec<usize> {
        rule.pieces(rows, pieces).into_iter().map(|piece| piece.len()).collect()
    }

    #[test]
    fn even_pieces_of_the_design() {
        for (rows, pieces, expected) in [
            (4, 3, vec![2, 1, 1]),
            (2, 2, vec![1, 1]),
            (1, 3, vec![1, 0, 0]),
            (0, 2, vec![0, 0]),
            (256, 2, vec![128, 128]),
        ] {
            assert_eq!(sizes(SplitRule::Even, rows, pieces), expected);
        }
        assert!(SplitRule::Even.pieces(4, 0).is_empty());
        assert_eq!(SplitRule::Even.piece(4, 3, 1), 2..3);
        assert_eq!(SplitRule::Even.piece(4, 3, 3), 4..4);
    }

    /// Checks DIST-4: the sizes of per-replica batches with TensorFlow's rule.
    #[test]
    fn tensorflow_pieces_of_the_rules() {
        let cases = [
            (4, vec![2, 2, 0]),
            (5, vec![2, 2, 1]),
            (7, vec![3, 3, 1]),
            (10, vec![4, 4, 2]),
            (1, vec![1, 0, 0]),
        ];
        for (rows, expected) in cases {
            assert_eq!(sizes(SplitRule::TensorFlow, rows, 3), expected);
        }
    }

    proptest! {
        // INV-10
        #[test]
        fn pieces_are_the_batch_in_order(rows in 0usize..2000, pieces in 1usize..40, tensorflow: bool) {
            let rule = if tensorflow { SplitRule::TensorFlow } else { SplitRule::Even };
            let mut next = 0;
            for (k, piece) in rule.pieces(rows, pieces).into_iter().enumerate() {
                prop_assert_eq!(&rule.piece(rows, pieces, k), &piece);
                prop_assert_eq!(piece.start, next);
                next = piece.end;
            }
            prop_assert_eq!(next, rows);
        }

        #[test]
        fn even_pieces_differ_by_one_at_most_and_the_first_are_larger(rows in 0usize..2000, pieces in 1usize..40) {
            for (k, size) in sizes(SplitRule::Even, rows, pieces).into_iter().enumerate() {
                let expected = if k < rows % pieces { rows.div_ceil(pieces) } else { rows / pieces };
                prop_assert_eq!(size, expected);
            }
        }

        #[test]
        fn no_size_overflows(rows: usize, pieces in 1usize..9) {
            for rule in [SplitRule::Even, SplitRule::TensorFlow] {
                prop_assert_eq!(rule.pieces(rows, pieces).last().unwrap().end, rows);
            }
        }
    }
}
