//! Iterators that can be restarted, and the sources that input functions return.

use distribute_base::{Error, Result};
use distribute_core::{DistributedDataset, DistributedIterator};
use distribute_data::{Dataset, ElementSpec};
use distribute_tensor::Nest;
use distribute_values::{Distributed, PerReplica};
use std::sync::Arc;

/// An iterator over a distributed dataset that can be restarted.
///
/// In new programs, iterate over a [`DistributedDataset`] instead: each call of its `iter` begins another pass.
#[doc(alias = "tf.distribute.InputIterator")]
pub struct InputIterator<T> {
    dataset: DistributedDataset<T>,
    pass: DistributedIterator<T>,
    /// Whether the iterator has neither been initialized nor asked for an element.
    is_new: bool,
}

impl<T> std::fmt::Debug for InputIterator<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InputIterator").field("pass", &self.pass).finish_non_exhaustive()
    }
}

/// The return type of the function passed to [`Legacy::make_input_fn_iterator`](super::Legacy::make_input_fn_iterator).
pub enum InputSource<T> {
    /// A dataset. Each replica receives one element of it in each step.
    Dataset(Dataset<T>),
    /// A function that is called once for each replica in each step, in the order of replica ids. `None` ends the
    /// epoch.
    Callable(Arc<dyn Fn() -> Result<Option<T>> + Send + Sync>),
}

impl<T> std::fmt::Debug for InputSource<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InputSource::Dataset(dataset) => f.debug_tuple("Dataset").field(dataset).finish(),
            InputSource::Callable(_) => f.debug_tuple("Callable").finish_non_exhaustive(),
        }
    }
}

impl<T> From<Dataset<T>> for InputSource<T> {
    fn from(dataset: Dataset<T>) -> Self {
        InputSource::Dataset(dataset)
    }
}

impl<T: Nest + 'static> InputSource<T> {
    /// Creates a source from a function that is called once for each replica in each step. If it returns `None`, the
    /// epoch ends.
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
        Self { dataset, pass, is_new: true }
    }

    /// Begins an epoch: the first one, if this is the first call and no element has been taken. Otherwise begins the
    /// next one, and skips the elements that remain of the current epoch.
    #[doc(alias = "initializer")]
    pub fn initialize(&mut self) {
        if !std::mem::take(&mut self.is_new) {
            self.pass = self.dataset.iter();
        }
    }

    /// Returns the elements of the next step, one for each replica.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`]: the iterator is at its end.
    /// - The errors of [`DistributedIterator`].
    #[track_caller]
    pub fn get_next(&mut self) -> Result<PerReplica<T>> {
        self.get_next_as_optional()?.ok_or(Error::OutOfRange { operation: "InputIterator::get_next" })
    }

    /// Returns the elements of the next step, one for each replica. Returns `None` at the end.
    ///
    /// # Errors
    /// Returns the errors of [`DistributedIterator`].
    #[track_caller]
    pub fn get_next_as_optional(&mut self) -> Result<Option<PerReplica<T>>> {
        self.is_new = false;
        self.pass.next().transpose()
    }

    /// Returns the dtypes and shapes of each replica's elements; `None` if the pipeline does not define them.
    #[doc(alias = "output_shapes")]
    #[doc(alias = "output_types")]
    pub fn element_spec(&self) -> Option<PerReplica<ElementSpec>> {
        self.dataset.element_spec()
    }
}

/// The inputs of a step in [`Legacy::experimental_run`](super::Legacy::experimental_run): the next elements of an
/// [`InputIterator`], or nothing for `()`.
pub trait Inputs {
    /// The input of one replica.
    type Element;
    /// The inputs of all replicas.
    type Step: Distributed<Local = Self::Element>;

    /// Takes the inputs of one step.
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
