//! [`DistributedDataset`]: a dataset that is distributed over the replicas of a strategy.

use super::agreement::agree_on_plan;
use super::device_placement::DevicePlacement;
use super::passes::Passes;
use super::plan::CurrentPlan;
use super::{DistributedIterator, InputOptions, layout, of_this_process, pipeline, spec};
use crate::strategy::{IndependentWorker, Strategy};
use distribute_base::Result;
use distribute_data::{AutoShardPolicy, Cardinality, Dataset, Distribution, ElementSpec, Position};
use distribute_tensor::Nest;
use distribute_values::PerReplica;
use std::fmt;
use std::panic::Location;

/// A dataset that yields one batch per replica in each step.
///
/// Iterate over a reference: each pass reads the dataset from its start, as the next epoch. No operations can
/// be added to the pipeline. Clones are handles to the same dataset and share its count of passes.
///
/// The dataset stores the position of its latest pass. If it is restored as a component of a
/// [`Checkpoint`](crate::Checkpoint), it continues at this position, even in the middle of an epoch and of a shuffle.
/// The number of replicas may differ. No element of the epoch is lost or repeated. In elastic training, the dataset is
/// sharded again after each rendezvous.
///
/// ```
/// # use distribute::prelude::*;
/// # use distribute::{Checkpoint, data::Dataset};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("saved");
/// const EPOCHS: u64 = 2;
/// let data = Dataset::range(100).shuffle(100, 42).batch(10);
/// let two = MirroredStrategy::new(["cpu:0", "cpu:1"])?.distribute_dataset(data.clone())?;
/// let seen = two.iter().take(4).count();                              // … and then the process is killed
/// Checkpoint::new().part("input", &two).save(&path)?;
///
/// let three = MirroredStrategy::cpus(3)?.distribute_dataset(data)?;
/// Checkpoint::new().part("input", &three).restore(&path)?;
/// let mut steps = Vec::new();
/// for epoch in three.position().epoch..EPOCHS {
///     steps.push((epoch, three.iter().count()));
/// }
/// assert_eq!(steps, [(0, 10 - seen), (1, 10)]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.DistributedDataset")]
pub struct DistributedDataset<T> {
    pub(super) strategy: Strategy,
    plan: CurrentPlan<T>,
    /// The global batches; `None` if a function creates the datasets.
    batches: Option<Dataset<T>>,
    options: InputOptions,
    passes: Passes,
}

impl Strategy {
    /// Splits the batches of a dataset over the replicas. Batch the dataset by the *global* batch size.
    ///
    /// Every batch, including the last, is split into one per-replica batch for each of N replicas, in the
    /// order of replica ids. If the batch has b elements, the first b mod N replicas get b/N rows rounded up,
    /// and the others b/N rounded down. A per-replica batch may be empty, that is, have 0 rows; `minimize`
    /// gives it weight 0.
    ///
    /// With several workers, all must make this call, and each gets the batches of its local replicas. The workers
    /// check that they shard the data in the same way. They also check that they have the same files, unless each
    /// worker reads independently. By default each worker reads separate files if there are enough; otherwise each
    /// reads the complete dataset ([`InputOptions::auto_shard_policy`]). All workers take the same number of steps.
    ///
    /// Workers that don't wait for each other take steps of complete batches, each of which is split over the worker's
    /// local replicas. Each worker reads separate files or, if there are too few files, takes one of every W batches, W
    /// being the number of workers.
    ///
    /// # Errors
    /// - [`Error::Data`](distribute_base::Error::Data): the dataset is not batched, or the policy cannot shard it.
    /// - [`Error::Failed`](distribute_base::Error::Failed): the workers have different files. The error names the file
    ///   and the difference.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the workers build different datasets.
    /// - [`Error::Worker`](distribute_base::Error::Worker): another worker cannot distribute its dataset.
    /// - [`Error::Collective`](distribute_base::Error::Collective): a worker does not make the call.
    ///
    /// Iterating returns the errors of the pipeline, which name the element.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = strategy.distribute_dataset(Dataset::range(5).batch(4))?;
    /// let steps = batches.iter().collect::<distribute::Result<Vec<_>>>()?;
    /// let rows = |step: &PerReplica<HostTensor>| step.iter().map(|batch| batch.dims()[0]).collect::<Vec<_>>();
    /// assert_eq!([rows(&steps[0]), rows(&steps[1])], [[2, 2], [1, 0]]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// A loop over the dataset, with a `run` for each global batch:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = strategy.distribute_dataset(Dataset::range(4).batch(2))?;
    /// let mut results = Vec::new();
    /// for batch in &batches {
    ///     let result = strategy.run(batch?, |_ctx, input| {
    ///         let doubled = input.to_vec::<i64>()?.into_iter().map(|x| x * 2).collect();
    ///         Ok(HostTensor::vector(doubled))
    ///     })?;
    ///     results.push(result.to_string());
    /// }
    /// assert_eq!(format!("[{}]", results.join(", ")), "\
    /// [PerReplica:{
    ///   0: <Tensor: shape=(1,), dtype=int64, data=[0]>,
    ///   1: <Tensor: shape=(1,), dtype=int64, data=[2]>
    /// }, PerReplica:{
    ///   0: <Tensor: shape=(1,), dtype=int64, data=[4]>,
    ///   1: <Tensor: shape=(1,), dtype=int64, data=[6]>
    /// }]");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.experimental_distribute_dataset")]
    #[track_caller]
    pub fn distribute_dataset<T: Nest>(&self, dataset: Dataset<T>) -> Result<DistributedDataset<T>> {
        self.distribute_dataset_with(dataset, InputOptions::default())
    }

    /// Acts like [`distribute_dataset`](Strategy::distribute_dataset), with the given options.
    ///
    /// # Errors
    /// - The errors of `distribute_dataset`.
    /// - [`Error::NotSupported`](distribute_base::Error::NotSupported),
    ///   [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the strategy does not support the
    ///   options, or they contradict each other.
    #[track_caller]
    pub fn distribute_dataset_with<T: Nest>(
        &self,
        dataset: Dataset<T>,
        options: InputOptions,
    ) -> Result<DistributedDataset<T>> {
        const OPERATION: &str = "distribute_dataset";
        let world = self.world();
        let layout = layout(world);
        options.check(OPERATION, self, false)?;
        let (dataset, options) = self.own_part(dataset, options)?;
        let plan = Distribution::new(&dataset, layout, options.plan()).map_err(Into::into);
        let plan = plan.and_then(|plan| self.require_any_world(plan));
        let plan = plan.and_then(|plan| Ok(of_this_process(plan, world)?));
        let plan = agree_on_plan(self, OPERATION, Location::caller(), plan)?;
        Ok(DistributedDataset::new(self, plan, Some(dataset), options))
    }
}

impl Strategy {
    // PSV1-12
    /// Returns the batches of this worker, and options that disable sharding, if several workers run independently.
    /// Otherwise returns the arguments unchanged.
    fn own_part<T: Nest>(
        &self,
        dataset: Dataset<T>,
        options: InputOptions,
    ) -> Result<(Dataset<T>, InputOptions)> {
        match self.extended().independent() {
            None | Some(IndependentWorker { workers: 1, .. }) => Ok((dataset, options)),
            Some(IndependentWorker { workers, worker }) => {
                let (part, _) = dataset.batches_of_worker(workers, worker, &options.plan())?;
                Ok((part, InputOptions { auto_shard_policy: AutoShardPolicy::Off, ..options }))
            }
        }
    }
}

impl<T: Nest> DistributedDataset<T> {
    /// Creates a dataset that is distributed by `plan`. `batches` is `None` if a function creates the
    /// datasets.
    pub(super) fn new(
        strategy: &Strategy,
        plan: Distribution<T>,
        batches: Option<Dataset<T>>,
        options: InputOptions,
    ) -> Self {
        let passes = Passes::new(plan.beginning(0));
        Self { strategy: strategy.clone(), plan: CurrentPlan::new(plan), batches, options, passes }
    }

    /// Returns `true` if the dataset is distributed over the replicas of `strategy`.
    #[doc(hidden)]
    pub fn is_of(&self, strategy: &Strategy) -> bool {
        &self.strategy == strategy
    }

    /// Starts a pass over the dataset. Each step yields one batch per local replica. If the pass cannot start, its
    /// first step returns the error.
    #[track_caller]
    pub fn iter(&self) -> DistributedIterator<T> {
        self.pass(DevicePlacement::new(&self.strategy, &self.options))
    }

    /// Starts a pass whose batches are placed on devices by `placement`.
    #[track_caller]
    pub(super) fn pass(&self, placement: Result<DevicePlacement>) -> DistributedIterator<T> {
        DistributedIterator::new(&self.strategy, &self.plan, &self.passes, placement, Location::caller())
    }

    /// Folds `step` over the steps of one pass, beginning with `initial`.
    ///
    /// # Errors
    /// Returns the errors of the pipeline, and the first error of `step`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = strategy.distribute_dataset(Dataset::range(5).batch(2))?;
    /// let rows = batches.reduce(0, |rows, step| Ok(rows + step.iter().map(|batch| batch.dims()[0]).sum::<usize>()))?;
    /// assert_eq!(rows, 5);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.DistributedDataset.reduce")]
    pub fn reduce<S>(&self, initial: S, mut step: impl FnMut(S, PerReplica<T>) -> Result<S>) -> Result<S> {
        self.iter().try_fold(initial, |state, pieces| step(state, pieces?))
    }

    /// Describes the distribution in text. This includes the pipeline, the sharding policy, the input of each
    /// worker, the rows per replica in a full step, and the behavior at the end.
    pub fn explain(&self) -> String {
        self.plan.current(&self.strategy).unwrap_or_else(|_| self.plan.latest()).explain()
    }

    /// Returns the position of the latest pass after the last step that it yielded. If no pass is in progress, returns
    /// the position at which the next pass begins.
    pub fn position(&self) -> Position {
        self.passes.position()
    }

    /// Makes the next pass begin after the last step that is included in the weights.
    pub(super) fn rewind_passes(&self) {
        self.passes.rewind(self.strategy.updates());
    }

    /// Makes the next pass begin at `position`, which may have been saved with a different number of replicas. Later
    /// passes are the following epochs.
    ///
    /// # Errors
    /// - [`Error::Data`](distribute_base::Error::Data): the position belongs to a different dataset. Nothing
    ///   is changed.
    pub fn resume(&self, position: Position) -> Result<()> {
        self.check_position(&position)?;
        self.passes.resume(position);
        Ok(())
    }

    pub(super) fn check_position(&self, position: &Position) -> Result<()> {
        Ok(self.plan.current(&self.strategy)?.check_position(position)?)
    }

    /// Returns the number of steps in a pass, if it can be determined without reading the data; otherwise
    /// [`Cardinality::Unknown`].
    #[doc(alias = "tf.distribute.DistributedDataset.cardinality")]
    pub fn cardinality(&self) -> Cardinality {
        if let Some(batches) = &self.batches {
            return batches.cardinality();
        }
        let worker = pipeline(self.strategy.world());
        let known = self.plan.current(&self.strategy).and_then(|plan| {
            let (made, ends, layout) = (plan.made_for(worker)?, plan.ends(worker)?, plan.layout());
            Ok(match &made[..] {
                [one] => spec::step_count(one.cardinality(), layout.replicas, layout.workers, ends),
                _ => Cardinality::Unknown,
            })
        });
        known.unwrap_or(Cardinality::Unknown)
    }

    /// Returns the dtypes and shapes of each local replica's batches, derived from the dataset's
    /// [`element_spec`](distribute_data::Dataset::element_spec). With one worker, the number of rows is known if the
    /// global batch size is a known multiple of the number of replicas. If a function creates the datasets, these are
    /// the specs of its datasets. Returns `None` if a dataset has no spec, or if the function fails.
    #[doc(alias = "tf.distribute.DistributedDataset.element_spec")]
    pub fn element_spec(&self) -> Option<PerReplica<ElementSpec>> {
        let world = self.strategy.world();
        let (layout, replicas) = (layout(world), world.replicas());
        if let Some(batches) = &self.batches {
            return Some(spec::per_replica_spec(&batches.element_spec()?, layout, replicas));
        }
        let plan = self.plan.current(&self.strategy).ok()?;
        let made = plan.made_for(pipeline(world)).ok()?;
        let specs = made.iter().map(Dataset::element_spec).collect::<Option<Vec<_>>>()?;
        Some(PerReplica::from_values(specs.into_iter().cycle().take(replicas).collect()))
    }
}

impl<T> Clone for DistributedDataset<T> {
    fn clone(&self) -> Self {
        Self {
            strategy: self.strategy.clone(),
            plan: self.plan.clone(),
            batches: self.batches.clone(),
            options: self.options,
            passes: self.passes.clone(),
        }
    }
}

impl<T: Nest> fmt::Debug for DistributedDataset<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DistributedDataset<{}> of\n{}", std::any::type_name::<T>(), self.explain())
    }
}

impl<T: Nest> IntoIterator for &DistributedDataset<T> {
    type Item = Result<PerReplica<T>>;
    type IntoIter = DistributedIterator<T>;

    #[track_caller]
    fn into_iter(self) -> DistributedIterator<T> {
        self.iter()
    }
}
