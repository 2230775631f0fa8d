//! Batches of a dataset, cut into one piece for each replica.

use crate::values::PerReplica;
use crate::{Error, Result, Strategy};
use distribute_data::{Cardinality, Dataset, SplitRule, split_batch};
use distribute_tensor::Nest;

/// A dataset of global batches, of which each replica gets its piece.
///
/// Iterate over a reference: each pass starts the dataset again. Nothing can be added to the pipeline any more.
#[doc(alias = "tf.distribute.DistributedDataset")]
#[derive(Clone, Debug)]
pub struct DistributedDataset<T> {
    strategy: Strategy,
    dataset: Dataset<T>,
    rule: SplitRule,
}

impl Strategy {
    /// Splits the batches of a dataset over the replicas. The dataset is batched by the *global* batch size.
    ///
    /// Every batch of b elements, the last one too, becomes N pieces, one for each replica in the order of ids: b/N
    /// rounded up for the first b mod N, down for the rest. A piece may be empty: tensors of 0 rows, which
    /// [`minimize`](crate::Optimizer::minimize) weighs with 0.
    ///
    /// # Errors
    /// [`Error::Data`] for a dataset that is not batched; it says to call `batch`. And, while iterating, those of the
    /// pipeline, naming the element.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = strategy.distribute_dataset(Dataset::range(5).batch(4))?;
    /// let steps = batches.iter().collect::<distribute::Result<Vec<_>>>()?;
    /// let rows = |step: &PerReplica<HostTensor>| step.iter().map(|piece| piece.dims()[0]).collect::<Vec<_>>();
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
    pub fn distribute_dataset<T: Nest>(&self, dataset: Dataset<T>) -> Result<DistributedDataset<T>> {
        dataset.check()?;
        dataset.check_batched()?;
        Ok(DistributedDataset { strategy: self.clone(), dataset, rule: SplitRule::default() })
    }
}

impl<T> DistributedDataset<T> {
    /// The same with another rule of how a batch is cut.
    pub fn with_split_rule(self, rule: SplitRule) -> Self {
        Self { rule, ..self }
    }

    /// How many global batches a pass gives, as far as that is known.
    #[doc(alias = "tf.distribute.DistributedDataset.cardinality")]
    pub fn cardinality(&self) -> Cardinality {
        self.dataset.cardinality()
    }
}

impl<T: Nest> DistributedDataset<T> {
    /// A pass over the dataset: for each global batch a piece for each local replica.
    pub fn iter(&self) -> DistributedIterator<T> {
        DistributedIterator {
            batches: self.dataset.iter(),
            replicas: self.strategy.extended().local_replicas(),
            rule: self.rule,
            failed: false,
        }
    }
}

impl<T: Nest> IntoIterator for &DistributedDataset<T> {
    type Item = Result<PerReplica<T>>;
    type IntoIter = DistributedIterator<T>;

    fn into_iter(self) -> DistributedIterator<T> {
        self.iter()
    }
}

/// A pass over a [`DistributedDataset`]. After an error it is over.
#[doc(alias = "tf.distribute.DistributedIterator")]
pub struct DistributedIterator<T> {
    batches: distribute_data::Iter<T>,
    replicas: usize,
    rule: SplitRule,
    failed: bool,
}

impl<T: Nest> Iterator for DistributedIterator<T> {
    type Item = Result<PerReplica<T>>;

    fn next(&mut self) -> Option<Result<PerReplica<T>>> {
        if self.failed {
            return None;
        }
        let _input = tracing::trace_span!("input").entered();
        let batch = self.batches.next()?;
        let pieces = batch.map_err(Error::from).and_then(|batch| cut(batch, self.replicas, self.rule));
        self.failed = pieces.is_err();
        Some(pieces)
    }
}

fn cut<T: Nest>(batch: T, replicas: usize, rule: SplitRule) -> Result<PerReplica<T>> {
    let trees = split_batch(&batch.into_tree(), replicas, rule)?;
    let rows = trees.iter().map(|tree| tree.rows()).collect::<Result<_, _>>();
    let values = trees.into_iter().map(T::from_tree).collect::<Result<_, _>>();
    let wrong = Error::tensor("splitting a batch");
    match (values, rows) {
        (Ok(values), Ok(rows)) => Ok(PerReplica::pieces(values, rows)),
        (Err(error), _) | (_, Err(error)) => Err(wrong(error)),
    }
}
