//! Datasets that a function creates, one for each worker or replica.

use super::agree::same_plan;
use super::{DistributedDataset, InputOptions, InputReplicationMode, layout};
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_data::{Dataset, Distribution, InputContext};
use distribute_tensor::Nest;
use std::panic::Location;

impl Strategy {
    /// Distributes the dataset that `dataset_fn` creates for each worker, batched by the size for one replica
    /// and sharded according to its context. Each replica takes one element in each step, in order; nothing is
    /// split.
    ///
    /// With several workers, each makes this call, and calls `dataset_fn` once, with its rank as
    /// `input_pipeline_id`. A worker whose data ends before the others' gets empty batches until all are at the
    /// end.
    ///
    /// # Errors
    /// - [`Error::Data`](distribute_base::Error::Data): `dataset_fn` fails.
    ///
    /// While iterating, the errors of the pipeline.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = strategy.distribute_datasets_from_function(|context| {
    ///     let batch = context.get_per_replica_batch_size(4)?;
    ///     let mine = Dataset::range(8).shard(context.num_input_pipelines, context.input_pipeline_id);
    ///     Ok(mine.batch(batch))
    /// })?;
    /// let first = batches.iter().get_next()?;
    /// assert_eq!(first.map(|piece| piece.to_vec::<i64>().unwrap()).values(), [[0, 1], [2, 3]]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.distribute_datasets_from_function")]
    #[doc(alias = "tf.distribute.Strategy.experimental_distribute_datasets_from_function")]
    #[track_caller]
    pub fn distribute_datasets_from_function<T: Nest>(
        &self,
        dataset_fn: impl Fn(InputContext) -> Result<Dataset<T>> + Send + Sync + 'static,
    ) -> Result<DistributedDataset<T>> {
        self.distribute_datasets_from_function_with(InputOptions::default(), dataset_fn)
    }

    /// Acts like [`distribute_datasets_from_function`](Strategy::distribute_datasets_from_function), with
    /// options. In mode [`PerReplica`](InputReplicationMode::PerReplica) `dataset_fn` is called once for each
    /// replica, which iterates over a separate dataset.
    ///
    /// # Errors
    /// - The errors of `distribute_datasets_from_function`.
    /// - [`Error::NotSupported`](distribute_base::Error::NotSupported),
    ///   [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the strategy does not support the
    ///   options, or they contradict each other.
    #[track_caller]
    pub fn distribute_datasets_from_function_with<T: Nest>(
        &self,
        options: InputOptions,
        dataset_fn: impl Fn(InputContext) -> Result<Dataset<T>> + Send + Sync + 'static,
    ) -> Result<DistributedDataset<T>> {
        const OPERATION: &str = "distribute_datasets_from_function";
        options.check(OPERATION, self, true)?;
        let per_replica = options.replication_mode == InputReplicationMode::PerReplica;
        let among = among_workers(self);
        let make = move |context| dataset_fn(among(context)).map_err(Into::into);
        let worker = self.world().worker();
        let plan = Distribution::from_function(layout(self), per_replica, options.plan(), make);
        let plan = plan.and_then(|plan| {
            plan.made_for(worker)?.iter().try_for_each(Dataset::check)?;
            Ok(plan)
        });
        let plan = same_plan(self, OPERATION, Location::caller(), plan.map_err(Into::into))?;
        Ok(DistributedDataset::new(self, plan, None, options))
    }
}

/// Returns the numbers of this worker's pipelines among those of all workers, if a coordinator calls it or it
/// runs the program independently. Each such worker has a separate strategy.
fn among_workers(strategy: &Strategy) -> impl Fn(InputContext) -> InputContext + Send + Sync + 'static {
    let servers = strategy.extended().parameter_servers();
    let called = servers.and_then(|servers| Some((servers.workers(), servers.worker()?)));
    let independent = strategy.extended().independent().map(|of| (of.workers, of.worker));
    let place = independent.or(called);
    // PSV2-DS
    move |context| match place {
        Some((workers, worker)) => InputContext {
            num_input_pipelines: workers * context.num_input_pipelines,
            input_pipeline_id: worker * context.num_input_pipelines + context.input_pipeline_id,
            ..context
        },
        None => context,
    }
}
