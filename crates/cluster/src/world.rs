//! [`World`]: the workers and replicas of a training run, and the rank of this process.

use std::fmt;
use std::ops::Range;

/// The number of workers of a training run, the number of replicas, and the rank of this process.
///
/// A world converts between local and global ids of replicas, and identifies the chief. Each worker has replicas with
/// consecutive global ids, beginning with worker 0. In a world made by [`new`](Self::new) all workers have the same
/// number of replicas. In a world of [logical replicas](Self::logical) the total is fixed, and the numbers of any two
/// workers differ by at most one, except for one worker that may have another [share](Self::with_share).
///
/// ```
/// use distribute_cluster::World;
/// let world = World::new(3, 1, 2)?; // worker 1 of 3, with 2 replicas each
/// assert_eq!(world.num_replicas_in_sync(), 6);
/// assert_eq!(world.local_replicas(), 2..4);
/// assert_eq!(world.worker_of(5), 2);
/// assert!(!world.is_chief());
/// let world = World::logical(3, 1, 5)?; // worker 1 of 3, which share 5 replicas
/// assert_eq!([0, 1, 2].map(|worker| world.replicas_of(worker)), [0..1, 1..3, 3..5]);
/// # Ok::<(), distribute_cluster::WorldError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    workers: usize,
    worker: usize,
    count: ReplicaCount,
    /// The worker whose number of logical replicas is set; `None` if all have even shares.
    share: Option<Share>,
}

/// The number of logical replicas of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Share {
    worker: usize,
    replicas: usize,
}

/// The number of replicas as the job states it, for each worker or in total. It does not change when workers join or
/// leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaCount {
    /// The number of replicas of each worker.
    PerWorker(usize),
    /// The total number of [logical replicas](World::logical) of all workers.
    Total(usize),
}

/// The reason why numbers of workers and replicas do not form a valid world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorldError {
    /// The number of workers is 0.
    NoWorkers,
    /// The number of replicas is 0.
    NoReplicas,
    /// The rank of this worker is not less than the number of workers.
    NoSuchWorker {
        /// The rank of this worker.
        worker: usize,
        /// The number of workers.
        workers: usize,
    },
    /// The product of the numbers of workers and replicas overflows.
    TooMany {
        /// The number of workers.
        workers: usize,
        /// The number of replicas of each worker, or the total number of logical replicas.
        replicas: usize,
    },
    /// There are fewer logical replicas than workers.
    TooFew {
        /// The number of workers.
        workers: usize,
        /// The number of logical replicas.
        replicas: usize,
    },
}

impl fmt::Display for WorldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorldError::NoWorkers => f.write_str("a world has at least one worker"),
            WorldError::NoReplicas => f.write_str("a worker has at least one replica; give it a device"),
            WorldError::NoSuchWorker { worker, workers } => {
                write!(f, "there is no worker {worker}: the {workers} workers are numbered from 0")
            }
            WorldError::TooMany { workers, replicas } => {
                write!(f, "{workers} workers of {replicas} replicas exceed the maximum number of replicas")
            }
            WorldError::TooFew { workers, replicas } => {
                write!(
                    f,
                    "{workers} workers cannot share {replicas} logical replicas, because each worker has at least one: use \
                     {workers} logical replicas or more, or fewer workers"
                )
            }
        }
    }
}

impl std::error::Error for WorldError {}

impl World {
    /// Creates a world of `workers` workers with `replicas` replicas each. `worker` is the rank of this process,
    /// from 0.
    ///
    /// # Errors
    /// - [`WorldError::NoWorkers`]: `workers` is 0.
    /// - [`WorldError::NoReplicas`]: `replicas` is 0.
    /// - [`WorldError::TooMany`]: the total number of replicas overflows.
    /// - [`WorldError::NoSuchWorker`]: `worker` is not less than `workers`.
    pub fn new(workers: usize, worker: usize, replicas: usize) -> Result<Self, WorldError> {
        match (workers, replicas) {
            (0, _) => Err(WorldError::NoWorkers),
            (_, 0) => Err(WorldError::NoReplicas),
            _ if workers.checked_mul(replicas).is_none() => Err(WorldError::TooMany { workers, replicas }),
            _ if worker >= workers => Err(WorldError::NoSuchWorker { worker, workers }),
            _ => Ok(Self { workers, worker, count: ReplicaCount::PerWorker(replicas), share: None }),
        }
    }

    /// Creates a world of one process with `replicas` replicas.
    ///
    /// # Errors
    /// Returns [`WorldError::NoReplicas`] if `replicas` is 0.
    pub fn alone(replicas: usize) -> Result<Self, WorldError> {
        Self::new(1, 0, replicas)
    }

    /// Creates a world of `workers` workers that share `replicas` logical replicas. Worker `w` of `W` has the replicas
    /// from `replicas * w / W` to `replicas * (w + 1) / W`. `worker` is the rank of this process, from 0.
    ///
    /// # Errors
    /// - [`WorldError::NoWorkers`]: `workers` is 0.
    /// - [`WorldError::NoReplicas`]: `replicas` is 0.
    /// - [`WorldError::TooFew`]: `replicas` is less than `workers`.
    /// - [`WorldError::TooMany`]: `replicas * workers` overflows.
    /// - [`WorldError::NoSuchWorker`]: `worker` is not less than `workers`.
    pub fn logical(workers: usize, worker: usize, replicas: usize) -> Result<Self, WorldError> {
        let world = Self::new(workers, worker, replicas)?;
        if replicas < workers {
            return Err(WorldError::TooFew { workers, replicas });
        }
        Ok(Self { count: ReplicaCount::Total(replicas), ..world })
    }

    /// Sets the number of logical replicas of one worker. The others share the rest evenly. Returns `None` if this is
    /// no world of logical replicas, or if there is no such worker, or a worker would have no replica.
    ///
    /// ```
    /// use distribute_cluster::World;
    /// let world = World::logical(3, 0, 6)?.with_share(1, 1).unwrap();
    /// assert_eq!([0, 1, 2].map(|worker| world.replicas_of(worker)), [0..2, 2..3, 3..6]);
    /// assert_eq!(World::logical(3, 0, 6)?.with_share(1, 5), None);
    /// # Ok::<(), distribute_cluster::WorldError>(())
    /// ```
    pub fn with_share(self, worker: usize, replicas: usize) -> Option<Self> {
        let total = self.logical_replicas().filter(|_| worker < self.workers && self.workers > 1)?;
        let rest = total.checked_sub(replicas).filter(|_| replicas > 0)?;
        let share = (replicas * self.workers != total).then_some(Share { worker, replicas });
        (rest >= self.workers - 1).then_some(Self { share, ..self })
    }

    /// Creates a world of `workers` workers with `count` replicas, in total or each. `worker` is the rank of this
    /// process, from 0.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new) and [`logical`](Self::logical).
    pub fn with_count(workers: usize, worker: usize, count: ReplicaCount) -> Result<Self, WorldError> {
        match count {
            ReplicaCount::PerWorker(replicas) => Self::new(workers, worker, replicas),
            ReplicaCount::Total(replicas) => Self::logical(workers, worker, replicas),
        }
    }

    /// Returns the number of replicas as the job states it.
    pub fn count(&self) -> ReplicaCount {
        self.count
    }

    /// Returns the total number of logical replicas; `None` if the job states the number of replicas of each worker.
    pub fn logical_replicas(&self) -> Option<usize> {
        match self.count {
            ReplicaCount::PerWorker(_) => None,
            ReplicaCount::Total(replicas) => Some(replicas),
        }
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the rank of this worker, from 0.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Returns the number of replicas of this worker. With [logical replicas](Self::logical), other workers may have
    /// more or fewer.
    pub fn replicas(&self) -> usize {
        self.local_replicas().len()
    }

    /// Returns the number of replicas of each worker; `None` if some workers have more than others.
    pub fn replicas_of_each(&self) -> Option<usize> {
        match self.count {
            ReplicaCount::PerWorker(replicas) => Some(replicas),
            ReplicaCount::Total(replicas) => {
                let is_even = self.share.is_none() && replicas.is_multiple_of(self.workers);
                is_even.then(|| replicas / self.workers)
            }
        }
    }

    /// Returns the total number of replicas of all workers.
    pub fn num_replicas_in_sync(&self) -> usize {
        match self.count {
            ReplicaCount::PerWorker(replicas) => self.workers * replicas,
            ReplicaCount::Total(replicas) => replicas,
        }
    }

    /// Returns the global ids of this worker's replicas.
    pub fn local_replicas(&self) -> Range<usize> {
        self.replicas_of(self.worker)
    }

    /// Returns the global ids of the replicas of the worker with rank `worker`.
    pub fn replicas_of(&self, worker: usize) -> Range<usize> {
        self.first_of(worker)..self.first_of(worker + 1)
    }

    fn first_of(&self, worker: usize) -> usize {
        match (self.count, self.share) {
            (ReplicaCount::PerWorker(replicas), _) => worker * replicas,
            (ReplicaCount::Total(replicas), None) => worker * replicas / self.workers,
            (ReplicaCount::Total(replicas), Some(share)) => {
                // The others before `worker` have an even part of the rest.
                let is_after = worker > share.worker;
                let others = worker - usize::from(is_after);
                let first = others * (replicas - share.replicas) / (self.workers - 1);
                first + if is_after { share.replicas } else { 0 }
            }
        }
    }

    /// Converts the local id of one of this worker's replicas into its global id.
    pub fn global(&self, local: usize) -> usize {
        self.first_of(self.worker) + local
    }

    /// Converts the global id of a replica into its local id on this worker. Returns `None` if the replica
    /// belongs to another worker.
    pub fn local(&self, global: usize) -> Option<usize> {
        let local = global.checked_sub(self.first_of(self.worker))?;
        (local < self.replicas()).then_some(local)
    }

    /// Returns the rank of the worker to which the replica with this global id belongs.
    pub fn worker_of(&self, global: usize) -> usize {
        match self.count {
            ReplicaCount::PerWorker(replicas) => global / replicas,
            ReplicaCount::Total(_) if self.share.is_some() => {
                let begins_before = |worker: &usize| self.first_of(*worker) <= global;
                (0..self.workers).rev().find(begins_before).unwrap_or(0)
            }
            // A blame that another worker has sent may name a replica that does not exist.
            ReplicaCount::Total(replicas) => {
                (global.min(replicas - 1) * self.workers + self.workers - 1) / replicas
            }
        }
    }

    /// Returns whether the world has more than one worker.
    pub fn is_multi_worker(&self) -> bool {
        self.workers > 1
    }

    /// Returns whether this process has rank 0. This process does the work that only one worker may do, such as writing
    /// checkpoints and summaries.
    pub fn is_chief(&self) -> bool {
        self.worker == 0
    }
}

impl Default for World {
    /// Creates a world of one process with one replica.
    fn default() -> Self {
        Self { workers: 1, worker: 0, count: ReplicaCount::PerWorker(1), share: None }
    }
}

impl fmt::Display for World {
    /// Formats the world as `worker 1 of 3, 2 replicas each`, or as `worker 1 of 3, 2 of 5 logical replicas`. If there
    /// is only one worker, formats it as `2 replicas` or `5 logical replicas`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |replicas| if replicas == 1 { "" } else { "s" };
        if self.workers > 1 {
            write!(f, "worker {} of {}, ", self.worker, self.workers)?;
        }
        match self.count {
            ReplicaCount::PerWorker(replicas) => {
                let each = if self.workers > 1 { " each" } else { "" };
                write!(f, "{replicas} replica{}{each}", plural(replicas))
            }
            ReplicaCount::Total(replicas) => {
                if self.workers > 1 {
                    write!(f, "{} of ", self.replicas())?;
                }
                write!(f, "{replicas} logical replica{}", plural(replicas))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_through_all_workers() {
        for (workers, replicas) in [(1, 1), (1, 4), (3, 1), (3, 2)] {
            let mut next = 0;
            for worker in 0..workers {
                let world = World::new(workers, worker, replicas).unwrap();
                for (local, global) in world.local_replicas().enumerate() {
                    assert_eq!((global, world.global(local), world.local(global)), (next, next, Some(local)));
                    assert_eq!(world.worker_of(global), worker);
                    next += 1;
                }
                assert_eq!(world.local(next), None);
                assert_eq!(world.num_replicas_in_sync(), workers * replicas);
                assert_eq!((world.is_chief(), world.is_multi_worker()), (worker == 0, workers > 1));
            }
        }
    }

    #[test]
    fn logical_replicas_are_shared_by_all_workers_as_evenly_as_possible() {
        for replicas in 1..40 {
            for workers in 1..=replicas {
                let world = World::logical(workers, 0, replicas).unwrap();
                let mut next = 0;
                for worker in 0..workers {
                    let own = world.replicas_of(worker);
                    assert_eq!(own.start, next);
                    assert!(
                        (replicas / workers..=replicas.div_ceil(workers)).contains(&own.len()),
                        "{own:?}"
                    );
                    let there = World::logical(workers, worker, replicas).unwrap();
                    assert_eq!((there.local_replicas(), there.replicas()), (own.clone(), own.len()));
                    for (local, global) in own.clone().enumerate() {
                        assert_eq!(
                            world.worker_of(global),
                            worker,
                            "{global} of {replicas}, {workers} workers"
                        );
                        assert_eq!((there.global(local), there.local(global)), (global, Some(local)));
                    }
                    assert_eq!(there.local(own.end), None);
                    next = own.end;
                }
                assert_eq!((next, world.num_replicas_in_sync()), (replicas, replicas));
                let each = world.replicas_of_each();
                assert_eq!(each, replicas.is_multiple_of(workers).then(|| replicas / workers));
            }
        }
    }

    #[test]
    fn one_worker_may_have_more_or_fewer_logical_replicas() {
        for (replicas, workers) in (2..14).flat_map(|replicas| (2..=replicas).map(move |of| (replicas, of))) {
            let even = World::logical(workers, 0, replicas).unwrap();
            for (worker, share) in (0..workers).flat_map(|it| (1..=replicas).map(move |share| (it, share))) {
                let Some(world) = even.with_share(worker, share) else {
                    assert!(replicas - share < workers - 1, "{share} of {replicas}, {workers} workers");
                    continue;
                };
                let all: Vec<_> = (0..workers).map(|worker| world.replicas_of(worker)).collect();
                assert_eq!(all[worker].len(), share);
                assert!(all.iter().flat_map(Clone::clone).eq(0..replicas), "{all:?}");
                let others =
                    || all.iter().enumerate().filter(move |(it, _)| *it != worker).map(|(_, of)| of.len());
                assert!(others().min() > Some(0) && others().max() <= others().min().map(|it| it + 1));
                for global in 0..replicas {
                    assert!(all[world.worker_of(global)].contains(&global));
                }
                let each = all.iter().all(|of| of.len() == share).then_some(share);
                assert!(world.replicas_of_each().is_none_or(|of| Some(of) == each), "{all:?}");
            }
        }
        assert_eq!(World::new(3, 0, 2).unwrap().with_share(0, 1), None);
        assert_eq!(World::logical(1, 0, 2).unwrap().with_share(0, 1), None);
        let even = World::logical(3, 1, 6).unwrap();
        assert_eq!(
            (even.with_share(3, 1), even.with_share(0, 0), even.with_share(2, 2)),
            (None, None, Some(even))
        );
        assert_eq!(even.with_share(2, 1).unwrap().worker_of(usize::MAX), 2);
    }

    #[test]
    fn fewer_logical_replicas_than_workers_are_refused() {
        assert_eq!(World::logical(3, 0, 2), Err(WorldError::TooFew { workers: 3, replicas: 2 }));
        let text = World::logical(3, 0, 2).unwrap_err().to_string();
        assert!(text.starts_with("3 workers cannot share 2 logical replicas"), "{text}");
        assert_eq!(World::logical(1, 0, 0), Err(WorldError::NoReplicas));
    }

    #[test]
    fn an_invalid_world_is_refused() {
        assert_eq!(World::new(0, 0, 1), Err(WorldError::NoWorkers));
        assert_eq!(World::alone(0), Err(WorldError::NoReplicas));
        let text = World::new(2, 2, 1).unwrap_err().to_string();
        assert_eq!(text, "there is no worker 2: the 2 workers are numbered from 0");
        assert!(matches!(World::new(usize::MAX, 0, 2), Err(WorldError::TooMany { .. })));
    }

    #[test]
    fn it_prints_who_it_is() {
        assert_eq!(World::new(3, 1, 2).unwrap().to_string(), "worker 1 of 3, 2 replicas each");
        assert_eq!(World::alone(1).unwrap().to_string(), "1 replica");
        assert_eq!(World::logical(3, 1, 5).unwrap().to_string(), "worker 1 of 3, 2 of 5 logical replicas");
        assert_eq!(World::logical(1, 0, 5).unwrap().to_string(), "5 logical replicas");
    }
}
