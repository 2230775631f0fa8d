//! A counter of the occurrences of ids that have no row.

use super::hash;
use hashbrown::HashTable;

/// A bounded counter of ids. Half of its capacity is for recently counted ids. When that half is full, its ids become
/// the older ones, and the previous older ones are discarded.
#[derive(Debug)]
pub(super) struct Waiting {
    recent: HashTable<(i64, u32)>,
    older: HashTable<(i64, u32)>,
    limit: usize,
}

impl Waiting {
    /// Creates a counter with capacity for `limit` ids, at least two.
    pub(super) fn new(limit: usize) -> Self {
        Self { recent: HashTable::new(), older: HashTable::new(), limit: limit.max(2) }
    }

    /// Counts an occurrence of an id, and returns its count so far.
    pub(super) fn count(&mut self, id: i64) -> u32 {
        let hash_of = |entry: &(i64, u32)| hash(entry.0);
        if let Some((_, count)) = self.recent.find_mut(hash(id), |entry| entry.0 == id) {
            *count = count.saturating_add(1);
            return *count;
        }
        let before = take(&mut self.older, id);
        if self.recent.len() >= self.limit / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
        let count = before.unwrap_or(0).saturating_add(1);
        self.recent.insert_unique(hash(id), (id, count), hash_of);
        count
    }

    /// Removes the count of an id, which now has a row.
    pub(super) fn remove(&mut self, id: i64) {
        take(&mut self.recent, id);
        take(&mut self.older, id);
    }

    /// Returns the counts of the recent ids and of the older ones, each sorted by id.
    pub(super) fn counts(&self) -> [Vec<(i64, u32)>; 2] {
        [&self.recent, &self.older].map(|counted| {
            let mut all: Vec<_> = counted.iter().copied().collect();
            all.sort_unstable();
            all
        })
    }

    /// Replaces all counts.
    pub(super) fn restore(&mut self, [recent, older]: &[Vec<(i64, u32)>; 2]) {
        let table = |counts: &[(i64, u32)]| {
            let mut table = HashTable::new();
            for count in counts {
                take(&mut table, count.0);
                table.insert_unique(hash(count.0), *count, |entry| hash(entry.0));
            }
            table
        };
        (self.recent, self.older) = (table(recent), table(older));
    }

    pub(super) fn len(&self) -> usize {
        self.recent.len() + self.older.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.recent.allocation_size() + self.older.allocation_size()
    }
}

fn take(table: &mut HashTable<(i64, u32)>, id: i64) -> Option<u32> {
    let entry = table.find_entry(hash(id), |entry| entry.0 == id).ok()?;
    Some(entry.remove().0.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_that_come_often_are_counted_and_there_are_never_more_than_the_limit(
            limit in 0usize..12,
            ids in prop::collection::vec(0i64..12, 0..200),
        ) {
            let mut waiting = Waiting::new(limit);
            // The model: two generations, each with half the room.
            let (mut recent, mut older) = (Vec::<(i64, u32)>::new(), Vec::<(i64, u32)>::new());
            for id in ids {
                let expected = if let Some((_, count)) = recent.iter_mut().find(|(found, _)| *found == id) {
                    *count += 1;
                    *count
                } else {
                    let at = older.iter().position(|(found, _)| *found == id);
                    let count = at.map_or(0, |at| older.swap_remove(at).1) + 1;
                    if recent.len() >= limit.max(2) / 2 {
                        older = std::mem::take(&mut recent);
                    }
                    recent.push((id, count));
                    count
                };
                prop_assert_eq!(waiting.count(id), expected);
                prop_assert_eq!(waiting.len(), recent.len() + older.len());
                prop_assert!(waiting.len() <= limit.max(2));
            }
        }
    }

    #[test]
    fn who_has_a_row_begins_anew() {
        let mut waiting = Waiting::new(10);
        assert_eq!((waiting.count(4), waiting.count(4), waiting.count(-4)), (1, 2, 1));
        waiting.remove(4);
        assert_eq!((waiting.count(4), waiting.len()), (1, 2));
    }
}
