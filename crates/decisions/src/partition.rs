//! The partition of variables over workers that shard an optimizer's state.

use distribute_cluster::{World, fnv1a};
use distribute_collective::recovery::shards::{copied_shard, copying_worker};
use distribute_optim::{SlotShape, Unit};
use distribute_tensor::partition;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of elements that are reduced and updated at once. With their slots, these elements fit into the
/// first-level cache. The ranges of replicas and workers end at multiples of this number, so sums over blocks do not
/// depend on the number of ranges.
pub const BLOCK: usize = 2048;

/// The elements of a variable for which a process keeps slots.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotShare {
    /// All elements.
    All,
    /// A range, for slots with the shape of the variable.
    Range(Range<usize>),
    /// No slots, because another worker or a server keeps all of them.
    Elsewhere,
}

impl SlotShare {
    /// Returns the number of elements that this process keeps of a slot with `shape`, for a variable with the
    /// dimensions `variable`.
    pub fn elements(&self, shape: SlotShape, variable: &[usize]) -> usize {
        match self {
            SlotShare::All => shape.elements(variable),
            SlotShare::Range(range) => range.len(),
            SlotShare::Elsewhere => 0,
        }
    }
}

/// The rows of a variable that a worker writes to a checkpoint: those whose first element is in its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowShare {
    /// The indices of the rows.
    pub rows: Range<usize>,
    /// The number of elements at the beginning of the worker's range that are in a row of the worker before it.
    pub head: usize,
    /// The number of elements of the last row that are at the next worker.
    pub tail: usize,
}

impl RowShare {
    /// Returns the rows of a range of elements, if rows have `width` elements.
    fn new(range: &Range<usize>, width: usize) -> Self {
        let rows = range.start.div_ceil(width)..range.end.div_ceil(width);
        let head = (rows.start * width).min(range.end) - range.start;
        let tail = if rows.is_empty() { 0 } else { rows.end * width - range.end };
        Self { rows, head, tail }
    }
}

/// The way in which workers shard the state of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharding {
    /// The part of a variable that the rules need at once. If it is larger than an element, each variable has a single
    /// assignee.
    pub unit: Unit,
    /// Whether each worker has a copy of the slots of the worker before it.
    pub is_replicated: bool,
}

/// A partition: the range of each variable that each worker updates and for which the worker keeps slots. It is the
/// same on all workers.
#[derive(Debug)]
pub struct Partition {
    workers: usize,
    /// The rank of this worker. It changes if a spare replaces another worker.
    worker: AtomicUsize,
    sharding: Sharding,
    by_variable: Vec<VariablePartition>,
}

impl Partition {
    /// Creates the partition. `variables` contains the name of each variable and the number of its elements, on which
    /// alone the split of a variable depends. So it does not change if another variable is frozen.
    pub fn new<'v>(
        world: World,
        sharding: Sharding,
        variables: impl Iterator<Item = (&'v str, usize)>,
    ) -> Self {
        let partition = |(name, elements): (&str, usize)| {
            let is_whole = sharding.unit != Unit::Element;
            VariablePartition::new(name, elements, world.workers(), is_whole)
        };
        let worker = AtomicUsize::new(world.worker());
        Self { workers: world.workers(), worker, sharding, by_variable: variables.map(partition).collect() }
    }

    /// Returns the settings of the partition.
    pub fn sharding(&self) -> Sharding {
        self.sharding
    }

    /// Returns the worker whose slots this worker copies; `None` if there are no copies.
    pub fn copied_worker(&self) -> Option<usize> {
        self.copied_by(self.worker())
    }

    /// Returns the worker whose slots the given worker copies; `None` if there are no copies.
    pub fn copied_by(&self, worker: usize) -> Option<usize> {
        copied_shard(worker, self.workers).filter(|_| self.sharding.is_replicated)
    }

    /// Returns the worker that has the copies of this worker's slots; `None` if there are no copies.
    pub fn copying_worker(&self) -> Option<usize> {
        copying_worker(self.worker(), self.workers).filter(|_| self.sharding.is_replicated)
    }

    /// Returns the rank of this worker.
    pub fn worker(&self) -> usize {
        self.worker.load(Ordering::Relaxed)
    }

    /// Sets the rank of this worker, after it has received the slots of that rank.
    pub fn set_worker(&self, worker: usize) {
        self.worker.store(worker, Ordering::Relaxed);
    }

    /// Returns the range of a variable's elements that is assigned to this worker.
    pub fn own_range(&self, variable: usize) -> Range<usize> {
        self.range(variable, self.worker())
    }

    /// Returns the range of a variable's elements that is assigned to the given worker.
    pub fn range(&self, variable: usize, worker: usize) -> Range<usize> {
        self.by_variable[variable].of(worker)
    }

    /// Returns the elements of a variable for which the given worker keeps slots.
    pub fn share(&self, variable: usize, worker: usize) -> SlotShare {
        let partition = &self.by_variable[variable];
        if !partition.is_whole {
            return SlotShare::Range(partition.of(worker));
        }
        // A variable without elements may have slots with elements.
        if worker == partition.first { SlotShare::All } else { SlotShare::Elsewhere }
    }

    /// Returns the elements of a variable for which this worker keeps slots.
    pub fn own_share(&self, variable: usize) -> SlotShare {
        self.share(variable, self.worker())
    }

    /// Returns the rows that the given worker writes to a checkpoint, for a variable whose rows have `width` elements.
    /// Returns `None` for all workers if a row is on more than two of them.
    pub fn rows(&self, variable: usize, worker: usize, width: usize) -> Option<RowShare> {
        if width == 0 {
            return None;
        }
        let of = |worker| RowShare::new(&self.range(variable, worker), width);
        let tails = self.in_order(variable).map(|worker| of(worker).tail);
        let heads = self.in_order(variable).skip(1).map(|worker| of(worker).head).chain([0]);
        tails.eq(heads).then(|| of(worker))
    }

    /// Returns the workers in the order of their ranges of a variable.
    pub fn in_order(&self, variable: usize) -> impl Iterator<Item = usize> + use<> {
        let VariablePartition { workers, first, .. } = self.by_variable[variable];
        (0..workers).map(move |at| (first + at) % workers)
    }

    /// Returns, for each worker, its range of each variable.
    pub fn by_worker(&self) -> Vec<Vec<Range<usize>>> {
        let of = |worker| (0..self.by_variable.len()).map(|variable| self.range(variable, worker)).collect();
        (0..self.workers).map(of).collect()
    }
}

/// The partition of one variable. Ranges consist of complete blocks, so sums of squares over blocks do not depend on
/// the ranges.
#[derive(Clone, Copy, Debug)]
struct VariablePartition {
    elements: usize,
    workers: usize,
    /// The worker with the first range. It differs between variables, because ranges may differ in size by a block, and
    /// a small variable has only one block.
    first: usize,
    /// Whether all elements are assigned to the first worker.
    is_whole: bool,
}

impl VariablePartition {
    fn new(name: &str, elements: usize, workers: usize, is_whole: bool) -> Self {
        Self { elements, workers, first: (fnv1a(name.bytes()) % workers as u64) as usize, is_whole }
    }

    fn of(&self, worker: usize) -> Range<usize> {
        let Self { elements, workers, first, is_whole } = *self;
        let at = (worker + workers - first) % workers;
        if is_whole {
            return if at == 0 { 0..elements } else { elements..elements };
        }
        partition::even(elements, workers, BLOCK, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn partition_of(world: World, sizes: &[usize]) -> Partition {
        let sharding = Sharding { unit: Unit::Element, is_replicated: false };
        let names: Vec<_> = (0..sizes.len()).map(|at| at.to_string()).collect();
        Partition::new(world, sharding, names.iter().map(String::as_str).zip(sizes.iter().copied()))
    }

    proptest! {
        // INV-40
        #[test]
        fn each_element_has_one_owner_and_owners_have_equally_many_blocks(
            elements in 0usize..40_000, workers in 1usize..9, name in "[a-z]{1,8}",
        ) {
            let partition = VariablePartition::new(&name, elements, workers, false);
            let mut end = 0;
            for at in 0..workers {
                let range = partition.of((partition.first + at) % workers);
                prop_assert_eq!(range.start, end);
                prop_assert!(range.start.is_multiple_of(BLOCK) || range.is_empty());
                let even = elements.div_ceil(BLOCK) / workers;
                prop_assert!((even..=even + 1).contains(&range.len().div_ceil(BLOCK)));
                end = range.end;
            }
            prop_assert_eq!(end, elements);
        }
    }

    proptest! {
        // INV-111
        #[test]
        fn each_row_is_written_by_one_worker_with_what_the_next_one_has(
            rows in 1usize..60, width in 1usize..3000, workers in 1usize..6,
        ) {
            let partition = partition_of(World::new(workers, 0, 1).unwrap(), &[rows * width]);
            let shares: Vec<_> =
                partition.in_order(0).map(|worker| (worker, partition.rows(0, worker, width))).collect();
            if shares[0].1.is_none() {
                prop_assert!(shares.iter().all(|(_, share)| share.is_none()));
                // A range is smaller than a row, or empty.
                prop_assert!(width > BLOCK || (rows * width).div_ceil(BLOCK) < workers);
                return Ok(());
            }
            let (mut end, mut tail) = (0, 0);
            for (worker, share) in shares {
                let (share, range) = (share.unwrap(), partition.range(0, worker));
                prop_assert_eq!(share.head, tail);
                prop_assert!(share.rows.is_empty() || share.rows.start == end);
                prop_assert_eq!(share.head + share.rows.len() * width, range.len() + share.tail);
                (end, tail) = (end + share.rows.len(), share.tail);
            }
            prop_assert_eq!((end, tail), (rows, 0));
        }
    }

    #[test]
    fn workers_agree_on_the_owner_of_each_range() {
        let sizes = [7, 3 * BLOCK + 1, 0, 100 * BLOCK];
        let worlds = (0..3).map(|worker| World::new(3, worker, 2).unwrap());
        let all: Vec<_> = worlds.map(|world| partition_of(world, &sizes)).collect();
        for (variable, size) in sizes.iter().enumerate() {
            let mine: Vec<_> = all.iter().map(|partition| partition.own_range(variable)).collect();
            assert_eq!(mine.iter().map(Range::len).sum::<usize>(), *size);
            for partition in &all {
                assert!((0..3).all(|worker| partition.range(variable, worker) == mine[worker]));
                assert!(partition.in_order(variable).map(|worker| mine[worker].start).is_sorted());
                assert_eq!(partition.by_worker()[1][variable], mine[1]);
            }
        }
    }

    // INV-40
    #[test]
    fn variables_that_are_not_split_have_one_assignee_each() {
        let all = [("a", 0), ("b", 5 * BLOCK), ("c", 7)];
        for worker in 0..3 {
            let world = World::new(3, worker, 1).unwrap();
            let sharding = Sharding { unit: Unit::Row, is_replicated: false };
            let partition = Partition::new(world, sharding, all.into_iter());
            for (number, (_, elements)) in all.into_iter().enumerate() {
                let ranges: Vec<_> =
                    partition.in_order(number).map(|of| partition.range(number, of)).collect();
                assert_eq!((ranges[0].clone(), ranges[1].len(), ranges[2].len()), (0..elements, 0, 0));
                let shares = partition.in_order(number).map(|of| partition.share(number, of));
                assert!(shares.eq([SlotShare::All, SlotShare::Elsewhere, SlotShare::Elsewhere]));
            }
        }
    }

    #[test]
    fn small_variables_go_around() {
        let names = (0..300).map(|at| format!("layer.{at}.bias"));
        let mut counts = [0; 4];
        for name in names {
            let partition = VariablePartition::new(&name, 10, 4, false);
            counts[(0..4).find(|worker| !partition.of(*worker).is_empty()).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (50..100).contains(count)), "{counts:?}");
    }
}
