//! The partition of variables among workers that share the state of an optimizer.

use candle_core::Var;
use distribute_cluster::{World, fnv1a};
use distribute_tensor::partition;
use std::ops::Range;

/// Elements that are reduced and updated at a time: they fit the first-level cache with their slots. Ranges of replicas
/// and workers end at multiples of it, so sums over blocks don't depend on their number.
pub(crate) const BLOCK: usize = 2048;

/// The elements of each variable that each worker updates and keeps state for: the same on all workers.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    world: World,
    of_variables: Vec<Cuts>,
}

impl Partition {
    /// Each variable is cut by its name and size alone, so that freezing another one moves nothing.
    pub(crate) fn new<'v>(world: World, variables: impl Iterator<Item = (&'v str, &'v Var)>) -> Self {
        let cuts = |(name, variable): (&str, &Var)| Cuts::new(name, variable.elem_count(), world.workers());
        Self { world, of_variables: variables.map(cuts).collect() }
    }

    pub(crate) fn world(&self) -> World {
        self.world
    }

    /// The elements of a variable that this worker owns.
    pub(crate) fn mine(&self, variable: usize) -> Range<usize> {
        self.of(variable, self.world.worker())
    }

    /// The elements of a variable that a worker owns.
    pub(crate) fn of(&self, variable: usize, worker: usize) -> Range<usize> {
        self.of_variables[variable].of(worker)
    }

    /// The workers in the order of their elements of a variable.
    pub(crate) fn in_order(&self, variable: usize) -> impl Iterator<Item = usize> + use<> {
        let Cuts { workers, first, .. } = self.of_variables[variable];
        (0..workers).map(move |at| (first + at) % workers)
    }

    /// Returns the elements of each variable, for each worker.
    pub(crate) fn by_worker(&self) -> Vec<Vec<Range<usize>>> {
        let of = |worker| (0..self.of_variables.len()).map(|variable| self.of(variable, worker)).collect();
        (0..self.world.workers()).map(of).collect()
    }
}

/// The cuts of one variable. They are at whole blocks, so that sums of squares over blocks do not depend on them.
#[derive(Clone, Copy, Debug)]
struct Cuts {
    elements: usize,
    workers: usize,
    /// The worker with the first elements. Ranges may differ by a block, and small variables have only one block:
    /// these go around.
    first: usize,
}

impl Cuts {
    fn new(name: &str, elements: usize, workers: usize) -> Self {
        Self { elements, workers, first: (fnv1a(name.bytes()) % workers as u64) as usize }
    }

    fn of(&self, worker: usize) -> Range<usize> {
        let Self { elements, workers, first } = *self;
        let at = (worker + workers - first) % workers;
        partition::even(elements, workers, BLOCK, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use proptest::prelude::*;

    fn partition_of(world: World, sizes: &[usize]) -> Partition {
        let variable = |size: &usize| Var::zeros(*size, DType::F32, &Device::Cpu).unwrap();
        let variables: Vec<_> =
            sizes.iter().enumerate().map(|(at, size)| (at.to_string(), variable(size))).collect();
        Partition::new(world, variables.iter().map(|(name, variable)| (name.as_str(), variable)))
    }

    proptest! {
        // INV-40
        #[test]
        fn each_element_has_one_owner_and_owners_have_equally_many_blocks(
            elements in 0usize..40_000, workers in 1usize..9, name in "[a-z]{1,8}",
        ) {
            let cuts = Cuts::new(&name, elements, workers);
            let mut end = 0;
            for at in 0..workers {
                let range = cuts.of((cuts.first + at) % workers);
                prop_assert_eq!(range.start, end);
                prop_assert!(range.start.is_multiple_of(BLOCK) || range.is_empty());
                let even = elements.div_ceil(BLOCK) / workers;
                prop_assert!((even..=even + 1).contains(&range.len().div_ceil(BLOCK)));
                end = range.end;
            }
            prop_assert_eq!(end, elements);
        }
    }

    #[test]
    fn workers_agree_on_who_owns_what() {
        let sizes = [7, 3 * BLOCK + 1, 0, 100 * BLOCK];
        let worlds = (0..3).map(|worker| World::new(3, worker, 2).unwrap());
        let all: Vec<_> = worlds.map(|world| partition_of(world, &sizes)).collect();
        for (variable, size) in sizes.iter().enumerate() {
            let mine: Vec<_> = all.iter().map(|partition| partition.mine(variable)).collect();
            assert_eq!(mine.iter().map(Range::len).sum::<usize>(), *size);
            for partition in &all {
                assert!((0..3).all(|worker| partition.of(variable, worker) == mine[worker]));
                assert!(partition.in_order(variable).map(|worker| mine[worker].start).is_sorted());
                assert_eq!(partition.by_worker()[1][variable], mine[1]);
            }
        }
    }

    #[test]
    fn small_variables_go_around() {
        let names = (0..300).map(|at| format!("layer.{at}.bias"));
        let mut counts = [0; 4];
        for name in names {
            let cuts = Cuts::new(&name, 10, 4);
            counts[(0..4).find(|worker| !cuts.of(*worker).is_empty()).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (50..100).contains(count)), "{counts:?}");
    }
}
