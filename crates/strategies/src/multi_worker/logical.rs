//! Logical replicas: the program sets the number of replicas of all workers together, however many workers there are.

use super::builder::MultiWorkerMirroredStrategyBuilder;
use distribute_base::{Error, Result};
use distribute_cluster::{ReplicaCount, World};
use distribute_core::strategy::{Compression, StragglerPolicy};

const OPERATION: &str = "MultiWorkerMirroredStrategy";

impl MultiWorkerMirroredStrategyBuilder {
    /// Sets the number of replicas of all workers together. The workers share them, and run them as threads on CPUs.
    /// Worker `w` of `W` has the replicas from `replicas * w / W` to `replicas * (w + 1) / W`, so the numbers of any
    /// two workers differ by at most one. All workers must set the same number.
    ///
    /// The results of a training then depend on this number, and not on the number of workers. They are bit-identical
    /// to those of one process with this number of replicas. In elastic training this holds whichever workers are lost
    /// or join, and whenever.
    ///
    /// Each worker reads the complete dataset and takes the rows of its replicas, because files that are sharded over
    /// workers would make batches depend on the number of workers. For the same reason, a function that creates
    /// datasets is called for a single input pipeline.
    ///
    /// The number must be at least the number of workers of the cluster. Devices cannot be set.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::strategy::Links;
    /// let builder = MultiWorkerMirroredStrategy::builder().logical_replicas(5);
    /// let shares = builder.on_threads(Links::Memory, 3, |strategy| Ok(strategy.world().local_replicas()))?;
    /// assert_eq!(shares, [0..1, 1..3, 3..5]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn logical_replicas(mut self, replicas: usize) -> Self {
        self.logical_replicas = Some(replicas);
        self
    }

    /// Returns the number of replicas of each worker, or of all workers together.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: both numbers have been set, or devices with logical replicas.
    pub(super) fn replica_count(&self, of_each: Option<usize>) -> Result<ReplicaCount> {
        match self.logical_replicas {
            None => Ok(ReplicaCount::PerWorker(of_each.unwrap_or(1))),
            Some(replicas) if self.replicas.is_none() && self.devices.is_none() => {
                Ok(ReplicaCount::Total(replicas))
            }
            Some(replicas) => {
                let reason = format!(
                    "the workers share {replicas} logical replicas, which run on CPUs: leave out replicas and devices, or \
                     leave out logical_replicas"
                );
                Err(Error::invalid(OPERATION, reason))
            }
        }
    }
}

/// Returns an error if logical replicas are combined with a compression that has error feedback.
///
/// # Errors
///
/// - [`Error::InvalidArgument`]: each worker would keep what compression leaves of its gradients, so the result would
///   depend on the number of workers.
pub(super) fn require_no_feedback(replicas: ReplicaCount, compression: Compression) -> Result<()> {
    if matches!(replicas, ReplicaCount::PerWorker(_)) || !compression.has_feedback() {
        return Ok(());
    }
    let reason = format!(
        "the workers share logical replicas, and {compression:?} keeps on each worker what is left over of its gradients, \
         so that the result would depend on the number of workers: use Compression::Bf16 or another one without error \
         feedback, or leave out logical_replicas"
    );
    Err(Error::invalid(OPERATION, reason))
}

/// Returns the largest number of replicas that a worker of `all` may have, if the number of workers may fall to
/// `min_workers`.
pub(super) fn largest_share(all: World, min_workers: usize, stragglers: StragglerPolicy) -> usize {
    let rebalances = matches!(stragglers, StragglerPolicy::Rebalance { .. });
    match all.count() {
        ReplicaCount::PerWorker(replicas) => replicas,
        // One of the workers may have a single replica.
        ReplicaCount::Total(replicas) if rebalances && min_workers > 1 => {
            replicas.saturating_sub(1).div_ceil(min_workers - 1)
        }
        ReplicaCount::Total(_) if min_workers >= all.workers() => all.replicas(),
        ReplicaCount::Total(replicas) => replicas.div_ceil(min_workers.max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_worker_ever_has_more_than_the_largest_share() {
        for replicas in 1..20 {
            for (workers, min) in
                (1..=replicas).flat_map(|workers| (1..=workers).map(move |min| (workers, min)))
            {
                for worker in 0..workers {
                    let all = World::logical(workers, worker, replicas).unwrap();
                    let share =
                        |(workers, worker)| World::logical(workers, worker, replicas).unwrap().replicas();
                    let worlds = (min..=workers).flat_map(|now| (0..now).map(move |rank| (now, rank)));
                    let most = worlds.map(share).max().unwrap();
                    let found = largest_share(all, min, StragglerPolicy::Warn);
                    let shares =
                        |now: usize| (0..now).flat_map(move |it| (1..=replicas).map(move |of| (now, it, of)));
                    let shared =
                        (min..=workers).flat_map(shares).filter(|(now, _, of)| *of <= replicas / now);
                    let shared = shared.filter_map(|(now, it, of)| {
                        let world = World::logical(now, 0, replicas).unwrap().with_share(it, of)?;
                        (0..now).map(|worker| world.replicas_of(worker).len()).max()
                    });
                    let rebalance = StragglerPolicy::Rebalance { after: Duration::ZERO };
                    assert!(shared.max() <= Some(largest_share(all, min, rebalance)));
                    if min == workers {
                        assert_eq!(found, all.replicas());
                    } else {
                        assert_eq!(found, most, "{replicas} replicas, {min} to {workers} workers");
                    }
                }
            }
        }
    }
}
