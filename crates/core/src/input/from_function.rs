//! Datasets that a function creates, one per worker or one per replica.

use super::agreement::agree_on_plan;
use super::{DistributedDataset, InputOptions, InputReplicationMode, layout, of_this_process, pipeline};
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_data::{Dataset, Distribution, InputContext};
use distribute_tensor::Nest;
use std::panic::Location;

impl Strategy {
    /// Distributes the datasets that `dataset_fn` creates, one per worker. Each must be batched by the batch
    /// size of one replica, and sharded according to the context. In each step each replica takes the next
    /// element; batches are not split.
    ///
    /// With several workers, all must make this call. Each calls `dataset_fn` once, with its rank as
    /// `input_pipeline_id`. In elastic training, `dataset_fn` is called again if the number of workers changes. A
    /// worker whose data ends before the others' gets empty batches until all workers have reached the end.
    ///
    /// # Errors
    /// - [`Error::Data`](distribute_base::Error::Data): `dataset_fn` failed.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument),
    ///   [`Error::Failed`](distribute_base::Error::Failed): the workers' datasets do not fit together.
    /// - [`Error::Worker`](distribute_base::Error::Worker): `dataset_fn` failed on another worker.
    /// - [`Error::Collective`](distribute_base::Error::Collective): a worker does not make the call.
    ///
    /// Iterating returns the errors of the pipeline.
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
    /// let first = batches.iter().next().unwrap()?;
    /// assert_eq!(first.map(|batch| batch.to_vec::<i64>().unwrap()).values(), [[0, 1], [2, 3]]);
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

    /// Acts like [`distribute_datasets_from_function`](Strategy::distribute_datasets_from_function), with the
    /// given options. In mode [`PerReplica`](InputReplicationMode::PerReplica), `dataset_fn` is called once
    /// per replica, and each replica reads its own dataset.
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
        let with_pipelines = with_worker_pipelines(self);
        let make = move |context| dataset_fn(with_pipelines(context)).map_err(Into::into);
        let world = self.world();
        let worker = pipeline(world);
        let plan = Distribution::from_function(layout(world), per_replica, options.plan(), make);
        let plan = plan.and_then(|plan| {
            plan.made_for(worker)?.iter().try_for_each(Dataset::check)?;
            Ok(plan)
        });
        let plan = plan.map_err(Into::into).and_then(|plan| self.require_any_world(plan));
        let plan = plan.and_then(|plan| Ok(of_this_process(plan, world)?));
        let plan = agree_on_plan(self, OPERATION, Location::caller(), plan)?;
        Ok(DistributedDataset::new(self, plan, None, options))
    }
}

/// Returns a function that numbers this worker's pipelines among those of all workers. The function changes a context
/// only if a coordinator calls this worker or the worker runs the program independently. The strategy of such a worker
/// contains no other workers.
fn with_worker_pipelines(
    strategy: &Strategy,
) -> impl Fn(InputContext) -> InputContext + Send + Sync + 'static {
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
