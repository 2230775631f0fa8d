//! The combination of batches of workers that read different data into global batches.

use super::split::SplitRule;
use std::ops::Range;

/// Returns the steps in which a batch of worker `worker` is used, and for each step the rows of each of the worker's
/// replicas.
///
/// There are `workers` workers of `replicas` replicas each. A worker that reads its own files creates batches of the
/// global size. Each step takes a share of such a batch: `replicas` of the `workers * replicas` parts of a full batch.
/// A batch therefore lasts `workers` steps. In each step, every worker takes a different share, beginning with the
/// share of its own replicas. Together they take a global batch. If a share is incomplete, its rows are spread evenly
/// over the replicas. There is no step without rows, so a short batch lasts fewer steps.
///
/// `rows` is the size of this batch, and `full` the size of a full batch. With one worker, a batch of at most `full`
/// rows is one step, split by [`SplitRule::Even`].
///
/// ```
/// use distribute_data::plan::shares::steps;
/// assert_eq!(steps(8, 8, 2, 2, 0), [[0..2, 2..4], [4..6, 6..8]]);
/// assert_eq!(steps(3, 8, 2, 2, 0), [[0..2, 2..3]]);                       // the end of the data
/// ```
pub fn steps(
    rows: usize,
    full: usize,
    workers: usize,
    replicas: usize,
    worker: usize,
) -> Vec<Vec<Range<usize>>> {
    let all = workers.saturating_mul(replicas);
    if all == 0 {
        return Vec::new();
    }
    let mut steps = Vec::new();
    let (mut start, mut turn) = (0, worker % workers);
    // A batch longer than a full one, which no batching makes, loses no rows: it lasts more steps.
    while start < rows {
        let first = SplitRule::Even.piece(full.max(1), all, turn * replicas).start;
        let last = SplitRule::Even.piece(full.max(1), all, turn * replicas + replicas - 1).end;
        let share = (rows - start).min(last - first);
        turn = (turn + 1) % workers;
        if share > 0 {
            let pieces = SplitRule::Even.pieces(share, replicas).into_iter();
            steps.push(pieces.map(|piece| start + piece.start..start + piece.end).collect());
            start += share;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(steps: &[Vec<Range<usize>>]) -> Vec<Vec<usize>> {
        steps.iter().map(|step| step.iter().map(Range::len).collect()).collect()
    }

    /// Checks DIST-6: the sizes for a batch of 7 rows on 2 workers with 2 replicas each, and of 10 rows on 3 workers
    /// with 1.
    #[test]
    fn full_batches_are_shared_as_the_rules_say() {
        assert_eq!(sizes(&steps(7, 7, 2, 2, 0)), [[2, 2], [2, 1]]);
        assert_eq!(sizes(&steps(7, 7, 2, 2, 1)), [[2, 1], [2, 2]]);
        assert_eq!(sizes(&steps(10, 10, 3, 1, 1)), [[3], [3], [4]]);
    }

    #[test]
    fn one_worker_takes_a_batch_a_step() {
        assert_eq!(sizes(&steps(4, 4, 1, 3, 0)), [[2, 1, 1]]);
        assert_eq!(sizes(&steps(2, 4, 1, 2, 0)), [[1, 1]]);
        assert_eq!(sizes(&steps(0, 4, 1, 2, 0)), [[0usize; 0]; 0]);
    }

    #[test]
    fn replicas_that_a_batch_is_too_small_for_make_no_steps_without_rows() {
        assert_eq!(sizes(&steps(2, 2, 2, 2, 0)), [[1, 1]]);
        assert_eq!(sizes(&steps(2, 2, 2, 2, 1)), [[1, 1]]);
        assert_eq!(sizes(&steps(1, 1, 4, 1, 2)), [[1]]);
    }

    proptest! {
        // INV-10
        #[test]
        fn nothing_is_lost_and_no_step_is_empty(
            rows in 0usize..60, full in 0usize..40, workers in 1usize..5, replicas in 1usize..5, worker in 0usize..4,
        ) {
            let mut next = 0;
            for step in steps(rows, full, workers, replicas, worker) {
                prop_assert_eq!(step.len(), replicas);
                prop_assert!(step.iter().any(|piece| !piece.is_empty()));
                for piece in step {
                    prop_assert_eq!(piece.start, next);
                    next = piece.end;
                }
            }
            prop_assert_eq!(next, rows);
        }

        #[test]
        fn full_batches_make_global_batches(full in 1usize..60, workers in 1usize..5, replicas in 1usize..5) {
            prop_assume!(full >= workers * replicas);
            let all: Vec<_> = (0..workers).map(|w| sizes(&steps(full, full, workers, replicas, w))).collect();
            for step in 0..workers {
                let pieces: Vec<usize> = all.iter().flat_map(|worker| worker[step].clone()).collect();
                prop_assert_eq!(pieces.iter().sum::<usize>(), full);
                prop_assert!(*pieces.iter().max().unwrap() - *pieces.iter().min().unwrap() <= 1);
            }
        }
    }
}
