//! The ids of a request, sorted by shard.

/// The ids of a request, sorted by shard: what each is asked for, and where its answers belong.
///
/// Within a shard the order is that of the request, and an id that occurs twice is asked for twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split<K> {
    keys: Vec<K>,
    positions: Vec<usize>,
    /// Where each shard begins; at last, how many ids there are.
    starts: Vec<usize>,
}

impl<K: Copy> Split<K> {
    /// From the shard of each id, and what it is called there.
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

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.starts.len() - 1
    }

    /// What a shard is asked for: rows, or ids of a table that is partitioned by their hash.
    pub fn of(&self, shard: usize) -> &[K] {
        &self.keys[self.starts[shard]..self.starts[shard + 1]]
    }

    /// Where in the request its ids stand, ascending.
    pub fn positions(&self, shard: usize) -> &[usize] {
        &self.positions[self.starts[shard]..self.starts[shard + 1]]
    }

    /// What is meant for a shard of `values`, of which there are `width` for each id of the request.
    pub fn take<T: Clone>(&self, shard: usize, values: &[T], width: usize) -> Vec<T> {
        let positions = self.positions(shard);
        let mut taken = Vec::with_capacity(positions.len() * width);
        positions.iter().for_each(|at| taken.extend_from_slice(&values[at * width..(at + 1) * width]));
        taken
    }

    /// Puts a shard's answer, `width` values for each of its ids, where they belong in that to the request.
    pub fn put<T: Clone>(&self, shard: usize, answer: &[T], width: usize, whole: &mut [T]) {
        for (i, at) in self.positions(shard).iter().enumerate() {
            whole[at * width..(at + 1) * width].clone_from_slice(&answer[i * width..(i + 1) * width]);
        }
    }
}
