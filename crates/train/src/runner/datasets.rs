//! [`Datasets`]: functions that create the examples of each worker, and how they are batched.

use super::Trainer;
use distribute_base::{Error, Result};
use distribute_core::{DistributedDataset, Strategy};
use distribute_data::{self as data, Cardinality, Dataset, InputContext};
use distribute_tensor::Nest;
use std::sync::Arc;

type Provider<T> = Arc<dyn Fn(InputContext) -> Result<Dataset<T>> + Send + Sync>;
type Batched<T, B> = Arc<dyn Fn(Dataset<T>, Batching) -> Result<Dataset<B>> + Send + Sync>;

/// The sizes of per-replica batches, for the function that creates batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batching {
    /// The number of examples per replica in a step. All replicas together process the trainer's global batch.
    pub per_replica: usize,
    /// Whether the last batch is dropped if it is smaller than the others.
    pub drop_remainder: bool,
}

/// Functions that create the examples of each worker, without batching. They receive an [`InputContext`], which
/// determines the files or rows that this worker reads.
///
/// [`run`](super::run) calls them on each worker, and batches their datasets.
#[doc(alias = "tfgnn.runner.DatasetProvider")]
#[doc(alias = "DatasetProvider")]
pub struct Datasets<T: Nest, B = <T as Nest>::Batch> {
    training: Provider<T>,
    validation: Option<Provider<T>>,
    batched: Batched<T, B>,
}

impl<T: Nest, B> std::fmt::Debug for Datasets<T, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datasets").field("validation", &self.validation.is_some()).finish_non_exhaustive()
    }
}

impl<T: Nest + 'static> Datasets<T> {
    /// Creates datasets from a function that returns the training examples, without batching.
    ///
    /// [`run`](super::run) returns [`Error::InvalidArgument`] if the dataset is already batched.
    pub fn new(training: impl Fn(InputContext) -> Result<Dataset<T>> + Send + Sync + 'static) -> Self {
        let batched = |examples: Dataset<T>, Batching { per_replica, drop_remainder }| {
            if let data::Batching::Batches(size) = examples.batching() {
                let reason = format!(
                    "the dataset already yields batches of {size}, but the runner makes batches of {per_replica} for \
                     each replica: pass the examples without batch; if a batch is one example, use Datasets::batched"
                );
                return Err(Error::invalid("runner::run", reason));
            }
            Ok(if drop_remainder { examples.batch_exact(per_replica) } else { examples.batch(per_replica) })
        };
        Self { training: Arc::new(training), validation: None, batched: Arc::new(batched) }
    }
}

impl<T: Nest + 'static, B: Nest + 'static> Datasets<T, B> {
    /// Sets the function that returns the validation examples.
    #[doc(alias = "valid_ds_provider")]
    pub fn validation(
        self,
        validation: impl Fn(InputContext) -> Result<Dataset<T>> + Send + Sync + 'static,
    ) -> Self {
        Self { validation: Some(Arc::new(validation)), ..self }
    }

    /// Sets the function that creates batches if stacking examples is not sufficient. It may, for example, pad to the
    /// size of a per-replica batch, or merge graphs into one.
    ///
    /// `batched` receives the examples and the sizes of the batches.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_core::{DType, Device, Tensor};
    /// use distribute::{data::Padding, runner::Datasets};
    /// let rows = Dataset::from_slices(Tensor::zeros((4, 3), DType::F32, &Device::Cpu)?)?;
    /// let datasets = Datasets::new(move |_| Ok(rows.clone())).batched(|rows, batching| {
    ///     // Rows of 3 become rows of 8.
    ///     Ok(rows.padded_batch(batching.per_replica, Padding::new().sizes([vec![Some(8)]])))
    /// });
    /// # Ok::<(), distribute::Error>(())
    /// ```
    // GNN-5
    #[doc(alias = "tfgnn.runner.GraphTensorPadding")]
    #[doc(alias = "GraphTensorPadding")]
    #[doc(alias = "train_padding")]
    pub fn batched<B2: Nest + 'static>(
        self,
        batched: impl Fn(Dataset<T>, Batching) -> Result<Dataset<B2>> + Send + Sync + 'static,
    ) -> Datasets<T, B2> {
        Datasets { training: self.training, validation: self.validation, batched: Arc::new(batched) }
    }

    pub(super) fn has_validation(&self) -> bool {
        self.validation.is_some()
    }

    /// Returns the training batches. They repeat forever if the trainer sets the number of steps of an epoch.
    /// Otherwise, an infinite dataset is an error.
    #[track_caller]
    pub(super) fn to_train(
        &self,
        strategy: &Strategy,
        trainer: &Trainer<'_>,
    ) -> Result<DistributedDataset<B>> {
        let repeated = trainer.steps_per_epoch.is_some();
        let batches = self.batches(strategy, trainer, &self.training, move |examples, _| {
            if repeated { examples.repeat_forever() } else { examples }
        })?;
        ends(&batches, repeated, "set the number of steps of an epoch with Trainer::steps_per_epoch")?;
        Ok(batches)
    }

    /// Returns the batches of one validation; `None` if there are no validation examples. An infinite dataset is an
    /// error unless the trainer sets the number of steps of a validation.
    #[track_caller]
    pub(super) fn to_validate(
        &self,
        strategy: &Strategy,
        trainer: &Trainer<'_>,
    ) -> Result<Option<DistributedDataset<B>>> {
        let Some(validation) = &self.validation else { return Ok(None) };
        let steps = trainer.validation_steps;
        // The pass is finite: the next one starts at the first example.
        let batches = self.batches(strategy, trainer, validation, move |examples, step| match steps {
            Some(steps) => examples.repeat_forever().take(steps * step),
            None => examples,
        })?;
        ends(&batches, false, "set the number of steps of a validation with Trainer::validation_steps")?;
        Ok(Some(batches))
    }

    /// Distributes the dataset that `provider` returns, in per-replica batches. `limit` transforms the dataset before
    /// it is batched; its second argument is the number of examples that the dataset provides for one step.
    #[track_caller]
    fn batches(
        &self,
        strategy: &Strategy,
        trainer: &Trainer<'_>,
        provider: &Provider<T>,
        limit: impl Fn(Dataset<T>, usize) -> Dataset<T> + Send + Sync + 'static,
    ) -> Result<DistributedDataset<B>> {
        let (global, drop_remainder) = (trainer.global_batch, trainer.drop_remainder);
        let (provider, batched) = (provider.clone(), self.batched.clone());
        // Logical replicas have one pipeline on all workers.
        let world = strategy.world();
        let replicas = world.logical_replicas().unwrap_or(world.replicas());
        // GNN-4
        strategy.distribute_datasets_from_function(move |context| {
            let per_replica = context.get_per_replica_batch_size(global)?;
            let examples = limit(provider(context)?, per_replica * replicas);
            batched(examples, Batching { per_replica, drop_remainder })
        })
    }
}

impl<T: Nest, B> Clone for Datasets<T, B> {
    fn clone(&self) -> Self {
        let Self { training, validation, batched } = self;
        Self { training: training.clone(), validation: validation.clone(), batched: batched.clone() }
    }
}

fn ends<T: Nest>(batches: &DistributedDataset<T>, may_be_infinite: bool, advice: &str) -> Result<()> {
    if may_be_infinite || batches.cardinality() != Cardinality::Infinite {
        return Ok(());
    }
    Err(Error::invalid(
        "runner::run",
        format!("the dataset is infinite, so a pass over it has no end; {advice}"),
    ))
}
