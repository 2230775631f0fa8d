//! [`InputOptions`]: options for distributing a dataset.

use crate::strategy::Strategy;
use distribute_base::{Error, Result};
use distribute_data::{AutoShardPolicy, DistributeOptions, SplitRule, UnevenEnds};

/// Options for distributing a dataset over the replicas.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{InputOptions, data::{Dataset, SplitRule}};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"])?;
/// let options = InputOptions { split_rule: SplitRule::TensorFlow, ..Default::default() };
/// let mut steps = strategy.distribute_dataset_with(Dataset::range(4).batch(4), options)?.iter();
/// let rows: Vec<_> = steps.next().unwrap()?.iter().map(|batch| batch.dims()[0]).collect();
/// assert_eq!(rows, [2, 2, 0]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.InputOptions")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputOptions {
    /// Whether candle tensors are copied to the device of their replica. `None` (the default) means `true`.
    /// Host tensors stay in host memory.
    #[doc(alias = "experimental_fetch_to_device")]
    pub fetch_to_device: Option<bool>,
    /// Whether a function that creates datasets is called once per worker or once per replica.
    #[doc(alias = "experimental_replication_mode")]
    pub replication_mode: InputReplicationMode,
    /// Whether a function that creates datasets creates the tensors on the replica's device; `input_pipeline_id` is
    /// then the index of the replica. Nothing is copied, and a tensor on a different device is an error. Requires
    /// [`PerReplica`](InputReplicationMode::PerReplica) and `fetch_to_device: Some(false)`.
    #[doc(alias = "experimental_place_dataset_on_device")]
    pub place_dataset_on_device: bool,
    /// The number of steps to prepare in advance on a separate thread; 0 prepares none. It has an effect only if
    /// reading is expensive enough to justify a thread, or if tensors are copied to a device with separate memory. The
    /// batches prepared in advance occupy memory of that device.
    ///
    /// If files are dealt ([`AutoShardPolicy::Dealt`]), a thread always prepares at least one batch, and one more step
    /// than this number, so that a file is dealt a step before it is needed. With 0, workers wait for it in the step.
    #[doc(alias = "experimental_per_replica_buffer_size")]
    pub per_replica_buffer_size: usize,
    /// The policy for sharding elements over workers.
    #[doc(alias = "tf.data.experimental.DistributeOptions.auto_shard_policy")]
    pub auto_shard_policy: AutoShardPolicy,
    /// The rule for splitting batches over replicas.
    pub split_rule: SplitRule,
    /// The behavior if only some replicas have data for the last step.
    pub uneven_ends: UnevenEnds,
}

impl Default for InputOptions {
    fn default() -> Self {
        let DistributeOptions { policy, rule, ends, .. } = DistributeOptions::default();
        Self {
            fetch_to_device: None,
            replication_mode: InputReplicationMode::default(),
            place_dataset_on_device: false,
            per_replica_buffer_size: 1,
            auto_shard_policy: policy,
            split_rule: rule,
            uneven_ends: ends,
        }
    }
}

/// The number of datasets that a function creates: one per worker, or one per replica.
#[doc(alias = "tf.distribute.InputReplicationMode")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputReplicationMode {
    /// One dataset per worker. The worker's replicas take its elements in turn.
    #[default]
    #[doc(alias = "PER_WORKER")]
    PerWorker,
    /// One dataset per replica. This is only supported by [`Strategy::distribute_datasets_from_function`] of strategies
    /// that mirror variables in a single process.
    #[doc(alias = "PER_REPLICA")]
    PerReplica,
}

impl InputOptions {
    pub(super) fn plan(&self) -> DistributeOptions {
        DistributeOptions {
            policy: self.auto_shard_policy,
            rule: self.split_rule,
            ends: self.uneven_ends,
            prefetch: self.per_replica_buffer_size,
        }
    }

    /// Returns `true` if tensors are copied to the replicas' devices.
    pub(super) fn fetches_to_device(&self) -> bool {
        self.fetch_to_device.unwrap_or(true)
    }

    /// Returns an error if options contradict each other or the strategy does not support them.
    /// `from_function` is `true` if a function creates the datasets.
    pub(super) fn check(
        &self,
        operation: &'static str,
        strategy: &Strategy,
        from_function: bool,
    ) -> Result<()> {
        let per_replica = self.replication_mode == InputReplicationMode::PerReplica;
        if self.place_dataset_on_device && !per_replica {
            return Err(Error::invalid(
                operation,
                "place_dataset_on_device needs InputReplicationMode::PerReplica: a dataset for several replicas has \
                 no single device",
            ));
        }
        if self.place_dataset_on_device && self.fetches_to_device() {
            return Err(Error::invalid(
                operation,
                "place_dataset_on_device needs fetch_to_device: Some(false): tensors created on the device are not \
                 copied there",
            ));
        }
        if per_replica && !(from_function && strategy.extended().per_replica_input()) {
            return Err(Error::NotSupported {
                operation,
                strategy: strategy.extended().kind(),
                what: "InputReplicationMode::PerReplica here",
                advice: "use PerWorker, or distribute_datasets_from_function of a MirroredStrategy",
            });
        }
        Ok(())
    }
}
