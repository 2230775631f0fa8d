//! [`Dataset`]: a pipeline of nests. `iter` contains the iterator over one pass, `parameters` the types that
//! users pass to operations, `buckets` and `packing` those of operations on sequences.

mod buckets;
mod iter;
mod packing;
mod parameters;

pub use buckets::Buckets;
pub use iter::Iter;
pub(crate) use packing::packed;
pub use packing::{Packed, Packing};
pub use parameters::{AtDatasetEnd, Interleave, Numbers, Padding};

use crate::chunk::Assembly;
use crate::pipeline::{self, Batching, Look, Operation, Pipeline};
use crate::room::fits;
use crate::{Cardinality, ElementSpec, Error, Result};
use distribute_tensor::Nest;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A pipeline of elements of type `T`: a source and transformations. Each pass runs the pipeline from the
/// beginning.
///
/// A pass computes nothing before its first element is requested. Clones are handles to the same dataset.
///
/// # Passes and epochs
///
/// Passes over a dataset, with [`iter`](Dataset::iter) or a `for` loop, are counted. The order of every
/// [`shuffle`](Dataset::shuffle) depends on its seed and that count. Each pass therefore has a different order, but a
/// program has the same orders each time it runs. Clones share one count. A transformation of a dataset has a separate
/// count, which starts at 0. [`epoch`](Dataset::epoch) starts the pass with a given number.
///
/// # Errors
///
/// Elements are [`Result`]s. An error ends the pass. The next pass starts from the beginning.
#[doc(alias = "tf.data.Dataset")]
pub struct Dataset<T> {
    pipeline: Pipeline,
    passes: Arc<AtomicU64>,
    /// The spec of the elements, cached after the first request.
    spec: Arc<OnceLock<Option<ElementSpec>>>,
    elements: PhantomData<fn() -> T>,
}

impl<T> Clone for Dataset<T> {
    fn clone(&self) -> Self {
        self.typed_as()
    }
}

impl<T> std::fmt::Debug for Dataset<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dataset<{}> of\n{}", std::any::type_name::<T>(), self.explain())
    }
}

impl<T> Dataset<T> {
    /// Returns the number of elements in a pass, as far as it is known without running one.
    #[doc(alias = "tf.data.Dataset.cardinality")]
    pub fn cardinality(&self) -> Cardinality {
        self.pipeline.cardinality()
    }

    /// Returns whether elements are batches, and their size, as far as the pipeline determines it.
    ///
    /// The rows of [`from_slices`](Dataset::from_slices) are treated as single elements, even if they are already
    /// batches. `.map(|batch| batch)` changes the result to [`Batching::Unknown`].
    pub fn batching(&self) -> Batching {
        self.pipeline.batching()
    }

    /// Checks that all parameters of the pipeline are in range, without running anything.
    ///
    /// # Errors
    ///
    /// A pass over the dataset returns the same error.
    /// - [`Error::Parameter`]: a parameter is out of range, as in `batch(0)` or `shuffle(0, …)`.
    /// - [`Error::Worker`]: the index of a [`shard`](Dataset::shard) is not less than its number of workers.
    /// - [`Error::Hinted`]: the pipeline contains a [`shard_hint`](Dataset::shard_hint).
    /// - [`Error::Endless`]: an infinite dataset is cached.
    /// - [`Error::Cardinality`]: an [asserted](Dataset::assert_cardinality) number of elements is wrong.
    /// - [`Error::UnequalZip`]: datasets of [`zip_equal`](Dataset::zip_equal) have different lengths.
    pub fn check(&self) -> Result<()> {
        pipeline::check(&self.pipeline)
    }

    /// Calls [`check`](Dataset::check), and also checks that the elements are batches. Elements that are not
    /// batched cannot be split over replicas.
    ///
    /// # Errors
    ///
    /// - [`Error::NotBatched`]: [`batching`](Dataset::batching) is [`Batching::Elements`].
    /// - Any error of [`check`](Dataset::check).
    pub fn check_batched(&self) -> Result<()> {
        self.check()?;
        match self.batching() {
            Batching::Elements => Err(Error::NotBatched {
                what: "the elements of the dataset are not \
                                                                 batches"
                    .into(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns a description of the pipeline: the operations from the source on, one per line, each with the
    /// number of elements after it.
    pub fn explain(&self) -> String {
        pipeline::explain(&self.pipeline)
    }

    /// Returns a handle to the same dataset, whose elements are converted to another Rust type. For example,
    /// `Tree<Leaf>` accepts any structure, and `(HostTensor, i64)` a pair whose second component is a scalar. In a
    /// pass, an element that cannot be converted to `U` results in [`Error::Type`].
    pub fn typed<U: Nest>(&self) -> Dataset<U> {
        self.typed_as()
    }

    fn typed_as<U>(&self) -> Dataset<U> {
        let (pipeline, passes, spec) = (self.pipeline.clone(), self.passes.clone(), self.spec.clone());
        Dataset { pipeline, passes, spec, elements: PhantomData }
    }

    /// Returns the dtypes and shapes of the elements.
    ///
    /// Some sources and operations determine a spec that holds for all elements:
    /// - tensors in memory, columns of CSV files and features of records,
    /// - functions with a return type that determines it ([`Nest::scalar_dtypes`]: numbers, text, and tuples
    ///   and structs of these),
    /// - [`assert_element_spec`](Dataset::assert_element_spec).
    ///
    /// For other functions, generators and files, the first call of this method computes the first element, only once.
    /// Its structure, dtypes and sizes are assumed for all elements, except for the number of rows of batches, because
    /// the last batch may have fewer. If sizes differ from element to element, declare them with
    /// [`assert_element_spec`](Dataset::assert_element_spec).
    ///
    /// To compute the first element, user functions are called again with the first elements. Elements that are taken
    /// from a generator are kept for the next pass. The call is not counted as a pass, fills no cache, and skips
    /// shuffles. It takes the time of computing the first element.
    ///
    /// Returns `None` if a parameter is [out of range](Dataset::check), if the first element cannot be computed, or if
    /// there is none. This result is cached as well, and not computed again.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// # use distribute_tensor::HostTensor;
    /// let spec = |data: Dataset<HostTensor>| data.element_spec().unwrap().describe(&ToString::to_string);
    /// let rows = Dataset::range(100).map(|x| HostTensor::vector(vec![x as f32; 3]));
    /// assert_eq!(spec(rows.clone()), "float32 [3]");
    /// assert_eq!(spec(rows.shuffle(100, 42).batch(32)), "float32 [?, 3]");
    /// ```
    #[doc(alias = "tf.data.Dataset.element_spec")]
    pub fn element_spec(&self) -> Option<ElementSpec> {
        // The first element of an input may exist although that of the dataset doesn't.
        let empty = self.cardinality() == Cardinality::Finite(0);
        let first = if empty { Look::Never } else { Look::AtFirst };
        let look = || self.check().ok().and_then(|()| self.pipeline.spec(first));
        self.spec.get_or_init(look).clone()
    }

    /// Returns the spec that holds for all elements, without computing one; `None` if the pipeline does not
    /// determine it.
    pub(crate) fn known_spec(&self) -> Option<ElementSpec> {
        self.pipeline.spec(Look::Never)
    }

    /// Creates a dataset of the elements of an operation. Its count of passes starts at 0.
    pub(crate) fn of(operation: impl Operation + 'static) -> Self {
        Self::from_pipeline(Arc::new(operation))
    }

    pub(crate) fn from_pipeline(pipeline: Pipeline) -> Self {
        Self { pipeline, passes: Arc::default(), spec: Arc::default(), elements: PhantomData }
    }

    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }
}

impl<T: Nest> Dataset<T> {
    /// Starts the next pass, and returns an iterator over its elements.
    #[doc(alias = "tf.data.Dataset.as_numpy_iterator")]
    pub fn iter(&self) -> Iter<T> {
        self.epoch(self.passes.fetch_add(1, Ordering::Relaxed))
    }

    /// Starts the pass with the given number, which determines the orders of shuffles, and returns an iterator over its
    /// elements. The count of passes does not change.
    pub fn epoch(&self, number: u64) -> Iter<T> {
        Iter::new(self.check().map(|()| self.pipeline.start(number)))
    }
}

impl<T: Nest> Dataset<T> {
    /// Runs one pass, which is counted, and returns all elements as one batch. A leaf of shape `[…]` in each of `n`
    /// elements becomes one leaf of shape `[n, …]`.
    ///
    /// # Errors
    ///
    /// - [`Error::Endless`]: the dataset is infinite.
    /// - [`Error::Empty`]: the dataset has no elements.
    /// - [`Error::Stack`]: elements differ in structure, dtype or shape.
    /// - [`Error::Type`]: the batch cannot be converted to `T::Batch`.
    /// - [`Error::Parameter`]: the dataset has more elements than any memory can hold.
    /// - Any error of [`check`](Dataset::check) or of the pass.
    pub fn load(&self) -> Result<T::Batch> {
        if self.cardinality() == Cardinality::Infinite {
            return Err(Error::Endless { operation: "load" });
        }
        self.check()?;
        fits("load", "the number of elements", usize::MAX, self.cardinality())?;
        let mut stage = self.pipeline.start(self.passes.fetch_add(1, Ordering::Relaxed));
        let mut all = Assembly::new(0);
        while let Some(chunk) = stage.next(usize::MAX) {
            all.push(chunk?)?;
        }
        if all.len() == 0 {
            return Err(Error::Empty { operation: "load" });
        }
        let type_error = |source| Error::Type { operation: "load", index: 0, source };
        T::Batch::from_tree(all.finish()?).map_err(type_error)
    }
}

impl<T: Nest> IntoIterator for &Dataset<T> {
    type Item = Result<T>;
    type IntoIter = Iter<T>;

    fn into_iter(self) -> Iter<T> {
        self.iter()
    }
}

impl<T: Nest> IntoIterator for Dataset<T> {
    type Item = Result<T>;
    type IntoIter = Iter<T>;

    fn into_iter(self) -> Iter<T> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ids, values};
    use distribute_tensor::HostTensor;

    #[test]
    fn each_pass_starts_from_the_beginning() {
        let data = Dataset::range(3).batch(2);
        assert_eq!(ids(&data), ids(&data));
        let mut half = data.iter();
        half.next();
        assert_eq!(half.count(), 1);
        assert_eq!((&data).into_iter().count(), 2);
        assert_eq!(data.into_iter().count(), 2);
    }

    #[test]
    fn clones_count_passes_together_and_transformations_by_themselves() {
        let data = Dataset::range(50).shuffle(50, 1);
        let orders: Vec<Vec<i64>> = (0..3).map(|e| data.epoch(e).map(Result::unwrap).collect()).collect();
        assert_eq!(values(&data), orders[0]);
        assert_eq!(values(&data.clone()), orders[1]);
        assert_eq!(values(&data), orders[2]);
        assert_eq!(values(&data.take(50)), orders[0]);
    }

    #[test]
    fn load_gives_everything_as_one_batch() {
        let (x, y) = Dataset::range(3).map(|i| (i, i as f32 / 2.)).load().unwrap();
        assert_eq!(x.as_slice::<i64>().unwrap(), [0, 1, 2]);
        assert_eq!(y.as_slice::<f32>().unwrap(), [0., 0.5, 1.]);
        assert!(matches!(Dataset::range(0).load(), Err(Error::Empty { .. })));
        assert!(matches!(Dataset::range(1).repeat_forever().load(), Err(Error::Endless { .. })));
        let x = HostTensor::vector(vec![1i64, 2, 3]);
        assert_eq!(Dataset::from_slices(x).unwrap().repeat(2).load().unwrap().dims(), [6]);
    }

    #[test]
    fn datasets_that_were_not_batched_are_found_without_running_them() {
        let x = HostTensor::new(vec![0f32; 6], [3, 2]).unwrap();
        let data = Dataset::from_slices(x).unwrap();
        // The elements are vectors, which a split would cut into pieces.
        let error = data.shuffle(3, 1).check_batched().unwrap_err();
        assert!(error.to_string().contains(".batch(global_batch_size)"), "{error}");
        data.batch(2).repeat_forever().check_batched().unwrap();
        data.batch(2).map(|x| x).check_batched().unwrap();
        assert!(matches!(data.batch(0).check_batched(), Err(Error::Parameter { .. })));
    }

    #[test]
    fn debug_shows_the_plan() {
        let text = format!("{:?}", Dataset::range(3).batch(2));
        assert!(text.contains("HostTensor") && text.contains("batch 2"), "{text}");
    }
}
