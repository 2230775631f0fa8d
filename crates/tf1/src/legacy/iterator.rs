//! Iterators that are initialized, and the results of input functions.

use distribute_base::Result;
use distribute_core::{Distributed, DistributedDataset, DistributedIterator, PerReplica};
use distribute_data::{Dataset, ElementSpec};
use distribute_tensor::Nest;
use std::sync::Arc;

/// An iterator that can be restarted.
///
/// [`DistributedDataset`] supports the same with Rust's iterators.
#[doc(alias = "tf.distribute.InputIterator")]
pub struct InputIterator<T> {
    dataset: DistributedDataset<T>,
    pass: DistributedIterator<T>,
}

/// The result of the function passed to [`Legacy::make_input_fn_iterator`](super::Legacy::make_input_fn_iterator).
pub enum InputSource<T> {
    /// A dataset of which each replica receives one element in each step.
    Dataset(Dataset<T>),
    /// A callable that is called for each replica in each step, in order, until it returns `None`.
    Callable(Arc<dyn Fn() -> Result<Option<T>> + Send + Sync>),
}

impl<T> From<Dataset<T>> for InputSource<T> {
    fn from(dataset: Dataset<T>) -> Self {
        InputSource::Dataset(dataset)
    }
}

impl<T: Nest + 'static> InputSource<T> {
    /// Creates a source from a function that is called for each replica in each step; `None` ends the pass.
    pub fn callable(call: impl Fn() -> Result<Option<T>> + Send + Sync + 'static) -> Self {
        InputSource::Callable(Arc::new(call))
    }

    pub(super) fn into_dataset(self) -> Dataset<T> {
        match self {
            InputSource::Dataset(dataset) => dataset,
            InputSource::Callable(call) => Dataset::from_generator(move || {
                let call = call.clone();
                std::iter::from_fn(move || call().transpose())
            }),
        }
    }
}

impl<T: Nest> InputIterator<T> {
    pub(super) fn new(dataset: DistributedDataset<T>) -> Self {
        let pass = dataset.iter();
        Self { dataset, pass }
    }

    /// Restarts the iterator with the next epoch.
    #[doc(alias = "initializer")]
    pub fn initialize(&mut self) {
        self.pass = self.dataset.iter();
    }

    /// Returns the elements of the next step.
    ///
    /// # Errors
    /// Returns the errors of [`DistributedIterator::get_next`].
    #[track_caller]
    pub fn get_next(&mut self) -> Result<PerReplica<T>> {
        self.pass.get_next()
    }

    /// Returns the elements of the next step; `None` at the end.
    ///
    /// # Errors
    /// Returns the errors of [`DistributedIterator::get_next_as_optional`].
    #[track_caller]
    pub fn get_next_as_optional(&mut self) -> Result<Option<PerReplica<T>>> {
        self.pass.get_next_as_optional()
    }

    /// Returns the dtypes and shapes of each replica's elements, if the pipeline defines them.
    #[doc(alias = "output_shapes")]
    #[doc(alias = "output_types")]
    pub fn element_spec(&self) -> Option<PerReplica<ElementSpec>> {
        self.dataset.element_spec()
    }
}

/// The inputs of a step in [`Legacy::experimental_run`](super::Legacy::experimental_run): those of an
/// [`InputIterator`], or `()` for none.
pub trait Inputs {
    /// The input of a replica.
    type Element;
    /// The inputs of all replicas.
    type Step: Distributed<Local = Self::Element>;

    /// Returns the inputs of one step.
    ///
    /// # Errors
    /// Returns the errors of [`InputIterator::get_next`].
    fn step(self) -> Result<Self::Step>;
}

impl Inputs for () {
    type Element = ();
    type Step = ();
    fn step(self) -> Result<()> {
        Ok(())
    }
}

impl<T: Nest> Inputs for &mut InputIterator<T>
where
    PerReplica<T>: Distributed<Local = T>,
{
    type Element = T;
    type Step = PerReplica<T>;
    #[track_caller]
    fn step(self) -> Result<PerReplica<T>> {
        self.get_next()
    }
}
