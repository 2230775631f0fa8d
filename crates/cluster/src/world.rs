//! [`World`]: the workers and replicas of a training run, and the rank of this process.

use std::fmt;
use std::ops::Range;

/// The number of workers of a training run, the number of replicas of each, and the rank of this process.
///
/// A world converts between local and global ids, and identifies the chief. All workers have the same number of
/// replicas: replica `r` of worker `w` has the global id `w * replicas + r`.
///
/// ```
/// use distribute_cluster::World;
/// let world = World::new(3, 1, 2)?; // worker 1 of 3, with 2 replicas each
/// assert_eq!(world.num_replicas_in_sync(), 6);
/// assert_eq!(world.local_replicas(), 2..4);
/// assert_eq!(world.worker_of(5), 2);
/// assert!(!world.is_chief());
/// # Ok::<(), distribute_cluster::WorldError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    workers: usize,
    worker: usize,
    replicas: usize,
}

/// The reason why numbers of workers and replicas do not form a valid world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorldError {
    /// The number of workers is 0.
    NoWorkers,
    /// The number of replicas per worker is 0.
    NoReplicas,
    /// The rank of this worker is not less than the number of workers.
    NoSuchWorker {
        /// The rank of this worker.
        worker: usize,
        /// The number of workers.
        workers: usize,
    },
    /// The total number of replicas overflows.
    TooMany {
        /// The number of workers.
        workers: usize,
        /// The number of replicas of each worker.
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
            _ => Ok(Self { workers, worker, replicas }),
        }
    }

    /// Creates a world of one process with `replicas` replicas.
    ///
    /// # Errors
    /// Returns [`WorldError::NoReplicas`] if `replicas` is 0.
    pub fn alone(replicas: usize) -> Result<Self, WorldError> {
        Self::new(1, 0, replicas)
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the rank of this worker, from 0.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Returns the number of replicas of each worker.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Returns the total number of replicas of all workers.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.workers * self.replicas
    }

    /// Returns the global ids of this worker's replicas.
    pub fn local_replicas(&self) -> Range<usize> {
        self.replicas_of(self.worker)
    }

    /// Returns the global ids of the replicas of the worker with rank `worker`.
    pub fn replicas_of(&self, worker: usize) -> Range<usize> {
        worker * self.replicas..(worker + 1) * self.replicas
    }

    /// Converts the local id of one of this worker's replicas into its global id.
    pub fn global(&self, local: usize) -> usize {
        self.worker * self.replicas + local
    }

    /// Converts the global id of a replica into its local id on this worker. Returns `None` if the replica
    /// belongs to another worker.
    pub fn local(&self, global: usize) -> Option<usize> {
        let local = global.checked_sub(self.worker * self.replicas)?;
        (local < self.replicas).then_some(local)
    }

    /// Returns the rank of the worker to which a replica belongs. `global` is the global id of the replica.
    pub fn worker_of(&self, global: usize) -> usize {
        global / self.replicas
    }

    /// Returns whether the world has more than one worker.
    pub fn is_multi_worker(&self) -> bool {
        self.workers > 1
    }

    /// Returns whether this process is worker 0, which does the work that only one worker may do, such as writing
    /// checkpoints and summaries.
    pub fn is_chief(&self) -> bool {
        self.worker == 0
    }
}

impl Default for World {
    /// Creates a world of one process with one replica.
    fn default() -> Self {
        Self { workers: 1, worker: 0, replicas: 1 }
    }
}

impl fmt::Display for World {
    /// Formats the world as `worker 1 of 3, 2 replicas each` or, if there is only one worker, as `2 replicas`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.replicas == 1 { "" } else { "s" };
        match self.workers {
            1 => write!(f, "{} replica{plural}", self.replicas),
            _ => {
                write!(
                    f,
                    "worker {} of {}, {} replica{plural} each",
                    self.worker, self.workers, self.replicas
                )
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
    }
}
