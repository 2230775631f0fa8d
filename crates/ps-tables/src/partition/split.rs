//! The ids of a request, sorted by shard.

/// The ids of a request, sorted by shard, and the positions of their results in the response.
///
/// Within a shard the order is that of the request, and duplicates are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split<K> {
    keys: Vec<K>,
    positions: Vec<usize>,
    /// The index in `keys` of the first id of each shard, followed by the number of ids.
    starts: Vec<usize>,
}

impl<K: Copy> Split<K> {
    /// Creates the split from each id's shard, and its key on that shard.
    pub(crate) fn new(shards: usize, places: &[(usize, K)]) -> Self {
        let mut starts = vec![0; shards + 1];
        for (shard, _) in places {
            starts[shard + 1] += 1;
        }
        for shard in 0..shards {
            starts[shard + 1] += starts[shard];
        }
        let mut next = starts.clone();
        let mut positions = vec![0; places.len()];
        for (position, (shard, _)) in places.iter().enumerate() {
            positions[next[*shard]] = position;
            next[*shard] += 1;
        }
        Self { keys: positions.iter().map(|position| places[*position].1).collect(), positions, starts }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the keys of the ids on a shard, in the order of the request: the indices of their rows within the shard,
    /// or the ids themselves in a table that is partitioned by hash.
    pub fn of(&self, shard: usize) -> &[K] {
        &self.keys[self.starts[shard]..self.starts[shard + 1]]
    }

    /// Returns the positions of a shard's ids in the request, in ascending order.
    pub fn positions(&self, shard: usize) -> &[usize] {
        &self.positions[self.starts[shard]..self.starts[shard + 1]]
    }

    /// Returns a shard's part of `values`, which has `width` values for each id of the request.
    pub fn take<T: Clone>(&self, shard: usize, values: &[T], width: usize) -> Vec<T> {
        let positions = self.positions(shard);
        let mut taken = Vec::with_capacity(positions.len() * width);
        positions.iter().for_each(|at| taken.extend_from_slice(&values[at * width..(at + 1) * width]));
        taken
    }

    /// Writes a shard's response, with `width` values for each of its ids, to the positions of these ids in `whole`,
    /// the response to the complete request.
    pub fn put<T: Clone>(&self, shard: usize, answer: &[T], width: usize, whole: &mut [T]) {
        for (i, at) in self.positions(shard).iter().enumerate() {
            whole[at * width..(at + 1) * width].clone_from_slice(&answer[i * width..(i + 1) * width]);
        }
    }
}
