//! The division of a stream of rows into new batches, across the boundaries of the old ones.
//!
//! TensorFlow does this with batches of a known size. It numbers all rows of the stream, and divides them into
//! batches whose sizes repeat in a cycle. The batches of any two replicas then differ by at most one row, and
//! each step of all workers takes a global batch.

use std::ops::Range;

/// Returns the cycle of sizes of the per-replica batches of worker `worker`, for global batches of `batch` rows.
///
/// The cycle has one size for each replica of all workers together. A worker's cycle begins with the size for its own
/// first replica. The result is empty if there are no workers, no replicas or no such worker.
///
/// ```
/// use distribute_data::plan::recut::worker_sizes;
/// assert_eq!(worker_sizes(7, 2, 2, 0), [2, 2, 2, 1]);
/// assert_eq!(worker_sizes(7, 2, 2, 1), [2, 1, 2, 2]);
/// ```
pub fn worker_sizes(batch: usize, workers: usize, replicas_per_worker: usize, worker: usize) -> Vec<usize> {
    let replicas = workers.saturating_mul(replicas_per_worker);
    if replicas == 0 || worker >= workers {
        return Vec::new();
    }
    let mut sizes: Vec<usize> =
        (0..replicas).map(|r| batch / replicas + usize::from(r < batch % replicas)).collect();
    sizes.rotate_left(worker * replicas_per_worker);
    sizes
}

/// Divides `rows` rows into consecutive ranges of the given sizes, which are used in turn and repeated.
///
/// The last range may be shorter. A size of 0 gives an empty range, even after the last row, until a positive
/// size finds no rows left. If no size is positive, there are no ranges.
pub fn recut(rows: usize, sizes: &[usize]) -> Vec<Range<usize>> {
    if sizes.iter().all(|size| *size == 0) {
        return Vec::new();
    }
    let mut pieces = Vec::new();
    let mut start = 0;
    for size in sizes.iter().cycle() {
        if *size > 0 && start == rows {
            break;
        }
        let end = rows.min(start.saturating_add(*size));
        pieces.push(start..end);
        start = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_of_the_rules() {
        assert_eq!(worker_sizes(5, 2, 2, 0), [2, 1, 1, 1]);
        assert_eq!(worker_sizes(5, 2, 2, 1), [1, 1, 2, 1]);
        assert_eq!(worker_sizes(2, 2, 2, 0), [1, 1, 0, 0]);
        assert_eq!(worker_sizes(2, 2, 2, 1), [0, 0, 1, 1]);
        assert_eq!(worker_sizes(10, 3, 1, 0), [4, 3, 3]);
        assert_eq!(worker_sizes(10, 3, 1, 2), [3, 4, 3]);
        assert_eq!(worker_sizes(4, 1, 3, 0), [2, 1, 1]);
        assert_eq!(worker_sizes(4, 0, 3, 0), [0; 0]);
        assert_eq!(worker_sizes(4, 2, 2, 2), [0; 0]);
    }

    #[test]
    fn empty_pieces_come_until_a_size_finds_nothing_left() {
        assert_eq!(recut(5, &[2]), [0..2, 2..4, 4..5]);
        assert_eq!(recut(2, &[1, 0, 0]), [0..1, 1..1, 1..1, 1..2, 2..2, 2..2]);
        assert_eq!(recut(1, &[0, 2]), [0..0, 0..1, 1..1]);
        assert_eq!(recut(0, &[3]), [0..0; 0]);
        assert_eq!(recut(3, &[0]), [0..0; 0]);
        assert_eq!(recut(3, &[]), [0..0; 0]);
    }

    proptest! {
        #[test]
        fn all_workers_together_take_a_batch_a_step(batch in 0usize..100, workers in 1usize..6, replicas in 1usize..5) {
            let sizes: Vec<_> = (0..workers).map(|w| worker_sizes(batch, workers, replicas, w)).collect();
            for step in 0..workers {
                let all: Vec<_> = sizes.iter().flat_map(|s| &s[step * replicas..(step + 1) * replicas]).collect();
                prop_assert_eq!(all.iter().copied().sum::<usize>(), batch);
                prop_assert!(*all.iter().max().unwrap() - *all.iter().min().unwrap() <= 1);
            }
        }

        #[test]
        fn pieces_are_the_stream_in_order(rows in 0usize..200, sizes in proptest::collection::vec(0usize..7, 1..6)) {
            let pieces = recut(rows, &sizes);
            let mut next = 0;
            for piece in &pieces {
                prop_assert_eq!(piece.start, next);
                next = piece.end;
            }
            prop_assert!(next == rows || sizes.iter().all(|s| *s == 0));
        }
    }
}
