//! [`Dataset`]: a pipeline of nests, and iterating it.

mod iter;
mod parameters;

pub use iter::Iter;
pub use parameters::{Interleave, Numbers, Padding};

use crate::chunk::Assembly;
use crate::pipeline::{self, Batching, Look, Operation, Pipeline};
use crate::room::fits;
use crate::{Cardinality, ElementSpec, Error, Result};
use distribute_tensor::Nest;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A pipeline of elements of type `T`: a source and transformations, run anew by each pass over it.
///
/// Nothing is computed before it is asked for. Clones are handles on the same dataset.
///
/// # Passes and epochs
///
/// Passes over a dataset, by [`iter`](Dataset::iter) or a `for` loop, are counted, and the order of every
/// [`shuffle`](Dataset::shuffle) in it depends on its seed and that count: each pass has another order, and the same
/// program has the same orders each time it runs. Clones count together; a transformation of a dataset counts by
/// itself, from 0. [`epoch`](Dataset::epoch) gives the pass of any number.
///
/// # Errors
///
/// Elements come as [`Result`]s. After an error a pass is over; the next pass starts from the beginning.
#[doc(alias = "tf.data.Dataset")]
pub struct Dataset<T> {
    pipeline: Pipeline,
    passes: Arc<AtomicU64>,
    /// The spec, once it has been asked for.
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
    /// How many elements a pass gives, as far as that is known without running it.
    #[doc(alias = "tf.data.Dataset.cardinality")]
    pub fn cardinality(&self) -> Cardinality {
        self.pipeline.cardinality()
    }

    /// Returns whether elements are batches and of what size, as far as the pipeline tells.
    ///
    /// Slices whose rows are batches already count as single elements; `.map(|batch| batch)` makes that
    /// [`Batching::Unknown`].
    pub fn batching(&self) -> Batching {
        self.pipeline.batching()
    }

    /// Returns whether all parameters are in their ranges, without running anything.
    ///
    /// # Errors
    ///
    /// [`Error::Parameter`]: `batch(0)` or `shuffle(0, …)`. A pass over such a dataset gives the same error.
    pub fn check(&self) -> Result<()> {
        pipeline::check(&self.pipeline)
    }

    /// [`check`](Dataset::check), and that elements are not single ones that cannot be cut over replicas.
    ///
    /// # Errors
    ///
    /// [`Error::NotBatched`] if [`batching`](Dataset::batching) is [`Batching::Elements`].
    pub fn check_batched(&self) -> Result<()> {
        self.check()?;
        match self.batching() {
            Batching::Elements => Err(Error::NotBatched { what: "the dataset gives single elements".into() }),
            _ => Ok(()),
        }
    }

    /// Returns the operations from the source on, one a line, each with the number of elements behind it.
    pub fn explain(&self) -> String {
        pipeline::explain(&self.pipeline)
    }

    /// Returns the same dataset, its elements read as another type of nest: `Tree<Leaf>` for any structure,
    /// or `(HostTensor, i64)` where the second part is a scalar. An element that is no `U` gives
    /// [`Error::Type`].
    pub fn typed<U: Nest>(&self) -> Dataset<U> {
        self.typed_as()
    }

    fn typed_as<U>(&self) -> Dataset<U> {
        let (pipeline, passes, spec) = (self.pipeline.clone(), self.passes.clone(), self.spec.clone());
        Dataset { pipeline, passes, spec, elements: PhantomData }
    }

    /// Returns the dtypes and shapes of the elements.
    ///
    /// What sources and operations say of themselves holds for all elements: of tensors in memory, of columns
    /// of CSV files and features of records, of results of functions whose type tells
    /// ([`Nest::scalar_dtypes`]: numbers, text, and tuples and structs of these), and what
    /// [`assert_element_spec`](Dataset::assert_element_spec) declares.
    ///
    /// Of other functions, generators and files the first element is made, once, when this is first called.
    /// Its structure and dtypes are taken for those of all. So are its sizes, apart from the rows of batches,
    /// of which the last may have fewer: where sizes differ from element to element, declare them. For this
    /// look, functions are called again with the first elements, and what is taken from a generator is put
    /// back for the next pass; no pass is counted, no cache is filled, and shuffles are left out. It takes as
    /// long as the first element does.
    ///
    /// `None` if the first element cannot be made, or if there is none.
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
        let look = || self.check().ok().and_then(|()| self.pipeline.spec(Look::AtFirst));
        self.spec.get_or_init(look).clone()
    }

    /// Returns the spec that holds for all elements, without a look at one.
    pub(crate) fn known_spec(&self) -> Option<ElementSpec> {
        self.pipeline.spec(Look::Never)
    }

    /// Creates a dataset of what an operation gives. Its passes count from 0.
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
    /// Starts the next pass.
    #[doc(alias = "tf.data.Dataset.as_numpy_iterator")]
    pub fn iter(&self) -> Iter<T> {
        self.epoch(self.passes.fetch_add(1, Ordering::Relaxed))
    }

    /// Starts the pass of a given number, in the order that this pass has. Does not count as a pass.
    pub fn epoch(&self, number: u64) -> Iter<T> {
        Iter::new(self.check().map(|()| self.pipeline.start(number)))
    }
}

impl<T: Nest> Dataset<T> {
    /// Runs one pass (which counts) and returns all elements as one batch: every leaf of shape `[…]` becomes one of
    /// shape `[n, …]`. Of a dataset of rows, that is the whole as tensors.
    ///
    /// # Errors
    ///
    /// Those of the pass; [`Error::Endless`], [`Error::Empty`], and [`Error::Stack`] if elements differ in shape.
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
        // The elements are vectors, which a split would cut through.
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
