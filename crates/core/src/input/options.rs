//! [`InputOptions`]: how a strategy reads a dataset.

use crate::strategy::Strategy;
use distribute_base::{Error, Result};
use distribute_data::{AutoShardPolicy, DistributeOptions, SplitRule, UnevenEnds};

/// How a dataset is given to the replicas.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{InputOptions, data::{Dataset, SplitRule}};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"])?;
/// let options = InputOptions { split_rule: SplitRule::TensorFlow, ..Default::default() };
/// let mut steps = strategy.distribute_dataset_with(Dataset::range(4).batch(4), options)?.iter();
/// let rows: Vec<_> = steps.get_next()?.iter().map(|piece| piece.dims()[0]).collect();
/// assert_eq!(rows, [2, 2, 0]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.InputOptions")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputOptions {
    /// Whether candle tensors are moved to the device of their replica; `None`, the default, moves them. Host tensors stay
    /// in host memory.
    #[doc(alias = "experimental_fetch_to_device")]
    pub fetch_to_device: Option<bool>,
    /// Whether a function makes a dataset for each worker or for each replica.
    #[doc(alias = "experimental_replication_mode")]
    pub replication_mode: InputReplicationMode,
    /// Whether the function itself makes its tensors on the replica's device, where `input_pipeline_id` is the number of the
    /// replica. Nothing is copied then, and a tensor on another device is an error. Needs
    /// [`PerReplica`](InputReplicationMode::PerReplica) and `fetch_to_device: Some(false)`.
    #[doc(alias = "experimental_place_dataset_on_device")]
    pub place_dataset_on_device: bool,
    /// How many steps are prepared ahead on a thread, if reading is expensive enough for one, or tensors are moved to a device with
    /// memory of its own. Then the pieces of so many steps more are in that memory. 0 prepares none.
    #[doc(alias = "experimental_per_replica_buffer_size")]
    pub per_replica_buffer_size: usize,
    /// How elements are sharded over workers.
    #[doc(alias = "tf.data.experimental.DistributeOptions.auto_shard_policy")]
    pub auto_shard_policy: AutoShardPolicy,
    /// How batches are split over replicas.
    pub split_rule: SplitRule,
    /// What happens at the end if some replicas have data for a last step and others don't.
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

/// Whether a function makes a dataset for each worker or for each replica.
#[doc(alias = "tf.distribute.InputReplicationMode")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputReplicationMode {
    /// One for each worker, whose replicas take elements in turn.
    #[default]
    #[doc(alias = "PER_WORKER")]
    PerWorker,
    /// One for each replica. Only [`Strategy::distribute_datasets_from_function`] of strategies that mirror variables
    /// in one process.
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

    /// Whether tensors are moved to the replicas' devices.
    pub(super) fn fetches(&self) -> bool {
        self.fetch_to_device.unwrap_or(true)
    }

    /// Refuses options that contradict each other or that the strategy does not support. `from_function` says whether a
    /// function makes the datasets.
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
                "place_dataset_on_device needs InputReplicationMode::PerReplica: a dataset for several replicas has no one device",
            ));
        }
        if self.place_dataset_on_device && self.fetches() {
            return Err(Error::invalid(
                operation,
                "place_dataset_on_device needs fetch_to_device: Some(false): tensors made on the device are not brought there",
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
