//! The partition of tables whose rows have 64-bit ids.

use super::Split;
use distribute_tensor::random::mix;

/// The partition of a dynamic table's ids over shards, by hash. Every id belongs to a shard, and shards are about
/// equally large for any ids.
///
/// ```
/// use distribute_ps_tables::HashPartition;
/// let users = HashPartition::new(3);
/// assert_eq!(users.shard(-7), users.shard(-7));
/// assert!(users.shard(i64::MAX) < 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashPartition {
    shards: usize,
}

impl HashPartition {
    /// Creates a partition over `shards` shards, at least one.
    pub fn new(shards: usize) -> Self {
        Self { shards: shards.max(1) }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Returns the shard of an id, which is the same in every process and in every version of this crate.
    pub fn shard(&self, id: i64) -> usize {
        // The hash as a fraction of its range (Lemire, "Fast random integer generation in an interval", 2019).
        let hash = mix(id.cast_unsigned().wrapping_add(0x9e37_79b9_7f4a_7c15));
        ((u128::from(hash) * self.shards as u128) >> 64) as usize
    }

    /// Groups ids by shard. Within each shard, the ids keep their order in `ids`.
    pub fn split(&self, ids: &[i64]) -> Split<i64> {
        let places: Vec<_> = ids.iter().map(|id| (self.shard(*id), *id)).collect();
        Split::new(self.shards, &places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_about_equally_many_of_any_ids() {
        for (shards, step) in [(2, 1), (3, 2), (5, 1 << 40), (8, 4096)] {
            let partition = HashPartition::new(shards);
            let mut counts = vec![0usize; shards];
            (0..20_000).for_each(|i: i64| counts[partition.shard(i.wrapping_mul(step) - 5)] += 1);
            let even = 20_000 / shards;
            assert!(counts.iter().all(|n| n.abs_diff(even) < even / 10), "{shards} {step}: {counts:?}");
        }
    }

    #[test]
    fn a_split_asks_each_shard_for_its_ids() {
        let partition = HashPartition::new(4);
        let ids = [9, -1, 9, i64::MIN, 0];
        let split = partition.split(&ids);
        let mut found = [7; 5];
        for shard in 0..4 {
            assert!(split.of(shard).iter().all(|id| partition.shard(*id) == shard));
            split.put(shard, split.of(shard), 1, &mut found);
        }
        assert_eq!(found, ids);
    }

    #[test]
    fn shards_stay_the_same_from_version_to_version() {
        // Otherwise rows saved by another version would be looked up on the wrong shard.
        let partition = HashPartition::new(1000);
        let shards = [0, 1, -1, 1 << 62].map(|id| partition.shard(id));
        assert_eq!(shards, [883, 566, 893, 2]);
    }
}
