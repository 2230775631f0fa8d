//! The counts by which the hottest rows of a table are chosen.

use std::cmp::Reverse;
use std::collections::HashMap;

/// The number of steps between two choices. The counts are halved after each choice.
pub const WINDOW: u64 = 16;

/// The size in bytes of the id that a worker sends to request a row.
const ID_BYTES: u64 = 8;

/// The counts of the rows whose changes a worker sends: in how many of the gradients of all workers each row was.
#[derive(Clone, Debug, Default)]
pub(super) struct RowCounts {
    rows: HashMap<i64, Count>,
    /// The number of gradients, halved as the counts are.
    gradients: u64,
    /// The number of the gradient that is being counted.
    current: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    count: u32,
    /// The number of the last gradient that had the row. A row counts once in each gradient.
    last: u64,
}

/// A row that a worker proposes, with its count.
pub(super) type Candidate = (i64, u32);

impl RowCounts {
    /// Begins the gradient of a worker. The rows of its replicas are counted together.
    pub(super) fn begin_gradient(&mut self) {
        self.current += 1;
        self.gradients += 1;
    }

    /// Counts rows of the gradient that was begun last.
    pub(super) fn count(&mut self, ids: impl IntoIterator<Item = i64>) {
        for id in ids {
            let Count { count, last } = self.rows.entry(id).or_default();
            if std::mem::replace(last, self.current) != self.current {
                *count = count.saturating_add(1);
            }
        }
    }

    /// Returns the rows with the greatest counts, at most `limit`, in descending order, and halves all counts. Among
    /// equal counts, smaller ids come first. Omits rows that are in too few gradients: a copy of `row_bytes` bytes,
    /// which each worker receives in each step, must not take more bytes than the requests and responses that it
    /// replaces.
    pub(super) fn choose(&mut self, limit: usize, row_bytes: usize) -> Vec<Candidate> {
        let row = row_bytes as u64;
        let is_worth_it = |count: u32| u64::from(count) * (row + ID_BYTES) >= self.gradients * row;
        let all = self.rows.iter().map(|(id, count)| (*id, count.count));
        let chosen = hottest(all.filter(|(_, count)| is_worth_it(*count)).collect(), limit);
        self.gradients /= 2;
        self.rows.retain(|_, count| {
            count.count /= 2;
            count.count > 0
        });
        chosen
    }
}

/// Returns the candidates with the greatest counts, at most `limit`, in descending order. Among equal counts, smaller
/// ids come first. The result does not depend on the order of the candidates.
pub(super) fn hottest(mut all: Vec<Candidate>, limit: usize) -> Vec<Candidate> {
    let rank = |(id, count): &Candidate| (Reverse(*count), *id);
    if limit < all.len() {
        all.select_nth_unstable_by_key(limit, rank);
        all.truncate(limit);
    }
    all.sort_unstable_by_key(rank);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::SplitMix;

    fn counted(gradients: &[&[i64]]) -> RowCounts {
        let mut counts = RowCounts::default();
        for ids in gradients {
            counts.begin_gradient();
            counts.count(ids.iter().copied());
        }
        counts
    }

    #[test]
    fn a_row_counts_once_in_a_gradient_and_ties_go_to_smaller_ids() {
        let mut counts = counted(&[&[7, 3, 3, 9], &[3, 7, -1], &[9, 3, 7, -1]]);
        assert_eq!(counts.clone().choose(9, 0), [(3, 3), (7, 3), (-1, 2), (9, 2)]);
        assert_eq!(counts.clone().choose(3, 0), [(3, 3), (7, 3), (-1, 2)]);
        // Rows of 16 bytes must be in two of three gradients, and rows of 17 bytes in more.
        assert_eq!(counts.clone().choose(9, 16).len(), 4);
        assert_eq!(counts.choose(9, 17), [(3, 3), (7, 3)]);
        // Halved: 1 of 1 gradients.
        assert_eq!(counts.choose(9, 1 << 20), [(-1, 1), (3, 1), (7, 1), (9, 1)]);
        assert!(counts.rows.is_empty() && counts.choose(9, 0).is_empty());
    }

    /// The hottest rows of a table are among the hottest of its shards.
    #[test]
    fn the_hottest_of_all_shards_are_the_hottest_of_the_table() {
        let mut random = SplitMix(3);
        for shards in 1..6 {
            let (mut complete, mut parts) = (RowCounts::default(), vec![RowCounts::default(); shards]);
            for _ in 0..20 {
                complete.begin_gradient();
                parts.iter_mut().for_each(RowCounts::begin_gradient);
                for _ in 0..30 {
                    let below = 1 + random.below(40);
                    let id = random.below(below) as i64;
                    complete.count([id]);
                    parts[id as usize % shards].count([id]);
                }
            }
            for limit in [0, 1, 3, 7, 100] {
                let of_parts = parts.iter().flat_map(|part| part.clone().choose(limit, 24)).collect();
                let expected = complete.clone().choose(limit, 24);
                assert_eq!(hottest(of_parts, limit), expected, "{shards} shards");
                assert!(expected.len() <= limit && (limit == 0 || !expected.is_empty()));
            }
        }
    }
}
