//! The counts by which the hottest rows of a table are chosen.

use distribute_tensor::random::mix;
use hashbrown::HashTable;
use std::cmp::Reverse;

/// The number of changes between two choices. The counts are halved after each choice.
pub(super) const WINDOW: u64 = 16;

/// The size in bytes of the id that a worker sends to request a row.
const ID_BYTES: u64 = 8;

/// The counts of the rows whose changes a worker sends: how often the workers have looked up each row.
#[derive(Clone, Debug, Default)]
pub(super) struct RowCounts {
    rows: HashTable<Count>,
    /// The number of gradients of workers that were counted, halved as the counts are.
    gradients: u64,
    /// The number of the lookup that is being counted.
    lookup: u64,
    /// The number of changes that have begun since the last choice.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    id: i64,
    count: u32,
    /// The number of the last lookup that had the row. A row counts once in each lookup.
    last: u64,
}

/// A row that a worker proposes, with its count.
pub(super) type Candidate = (i64, u32);

impl RowCounts {
    /// Counts the gradient of a worker, and the rows of each of its lookups.
    pub fn count<I: IntoIterator<Item = i64>>(&mut self, lookups: impl IntoIterator<Item = I>) {
        self.gradients += 1;
        for lookup in lookups {
            self.lookup += 1;
            lookup.into_iter().for_each(|id| self.count_row(id));
        }
    }

    fn count_row(&mut self, id: i64) {
        let entry = self.rows.entry(hash(id), |row| row.id == id, |row| hash(row.id));
        let mut row = entry.or_insert(Count { id, count: 0, last: 0 });
        let Count { count, last, .. } = row.get_mut();
        if std::mem::replace(last, self.lookup) != self.lookup {
            *count = count.saturating_add(1);
        }
    }

    /// Begins a change of the table.
    pub fn begin_change(&mut self) {
        self.changes += 1;
    }

    /// Returns the number of changes that have begun since the last choice.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the rows with the greatest counts, at most `limit`, in descending order. Among equal counts, smaller ids
    /// come first. Omits rows that are looked up too seldom: a copy of `row_bytes` bytes, which each worker receives in
    /// each step, must not take more bytes than the requests and responses that it replaces.
    pub fn candidates(&self, limit: usize, row_bytes: usize) -> Vec<Candidate> {
        let row = row_bytes as u64;
        let is_worth_it = |count: u32| u64::from(count) * (row + ID_BYTES) >= self.gradients * row;
        let all = self.rows.iter().map(|row| (row.id, row.count));
        hottest(all.filter(|(_, count)| is_worth_it(*count)).collect(), limit)
    }

    /// Halves all counts after a choice.
    pub fn halve(&mut self) {
        (self.gradients, self.changes) = (self.gradients / 2, 0);
        self.rows.retain(|row| {
            row.count /= 2;
            row.count > 0
        });
    }
}

fn hash(id: i64) -> u64 {
    mix(id.cast_unsigned())
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

    fn counted(gradients: &[&[&[i64]]]) -> RowCounts {
        let mut counts = RowCounts::default();
        for lookups in gradients {
            counts.count(lookups.iter().map(|ids| ids.iter().copied()));
        }
        counts
    }

    #[test]
    fn a_row_counts_once_in_a_lookup_and_ties_go_to_smaller_ids() {
        let mut counts = counted(&[&[&[7, 3, 3, 9]], &[&[3, 7, -1]], &[&[9, 3, 7, -1]]]);
        assert_eq!(counts.candidates(9, 0), [(3, 3), (7, 3), (-1, 2), (9, 2)]);
        assert_eq!(counts.candidates(3, 0), [(3, 3), (7, 3), (-1, 2)]);
        // Rows of 16 bytes must be in two of three gradients, and rows of 17 bytes in more.
        assert_eq!(counts.candidates(9, 16).len(), 4);
        assert_eq!(counts.candidates(9, 17), [(3, 3), (7, 3)]);
        counts.halve();
        // 1 of 1 gradients.
        assert_eq!(counts.candidates(9, 1 << 20), [(-1, 1), (3, 1), (7, 1), (9, 1)]);
        counts.halve();
        assert!(counts.rows.is_empty() && counts.candidates(9, 0).is_empty());
    }

    /// A row that each of three replicas requests saves more bytes than one that only one of them requests.
    #[test]
    fn each_lookup_of_a_worker_counts() {
        let counts = counted(&[&[&[1, 2], &[1], &[1, 3, 3]], &[&[2], &[], &[2]]]);
        assert_eq!(counts.candidates(9, 0), [(1, 3), (2, 3), (3, 1)]);
        assert_eq!(counts.candidates(9, 1 << 20), [(1, 3), (2, 3)]);
    }

    /// The hottest rows of a table are among the hottest of its shards.
    #[test]
    fn the_hottest_of_all_shards_are_the_hottest_of_the_table() {
        let mut random = SplitMix(3);
        for shards in 1..6 {
            let (mut complete, mut parts) = (RowCounts::default(), vec![RowCounts::default(); shards]);
            for _ in 0..20 {
                let ids: Vec<i64> = (0..30)
                    .map(|_| {
                        let below = 1 + random.below(40);
                        random.below(below) as i64
                    })
                    .collect();
                complete.count([ids.iter().copied()]);
                for (number, part) in parts.iter_mut().enumerate() {
                    part.count([ids.iter().copied().filter(|id| *id as usize % shards == number)]);
                }
            }
            for limit in [0, 1, 3, 7, 100] {
                let of_parts = parts.iter().flat_map(|part| part.candidates(limit, 24)).collect();
                let expected = complete.candidates(limit, 24);
                assert_eq!(hottest(of_parts, limit), expected, "{shards} shards");
                assert!(expected.len() <= limit && (limit == 0 || !expected.is_empty()));
            }
        }
    }
}
