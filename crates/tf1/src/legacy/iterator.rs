//! Iterators that are initialized, and what input functions give.

use distribute_base::Result;
use distribute_core::{Distributed, DistributedDataset, DistributedIterator, PerReplica};
use distribute_data::{Dataset, ElementSpec};
use distribute_tensor::Nest;
use std::sync::Arc;

/// A pass that can be restarted.
///
/// [`DistributedDataset`] does the same with Rust's iterators.
#[doc(alias = "tf.distribute.InputIterator")]
pub struct InputIterator<T> {
    dataset: DistributedDataset<T>,
    pass: DistributedIterator<T>,
}

/// The return value of the function given to [`Legacy::make_input_fn_iterator`](super::Legacy::make_input_fn_iterator).
pub enum InputSource<T> {
    /// A dataset of which each replica takes one element in each step.
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
    /// A function that is called for each replica in each step; `None` ends the pass.
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

    /// Restarts with the next epoch.
    #[doc(alias = "initializer")]
    pub fn initialize(&mut self) {
        self.pass = self.dataset.iter();
    }

    /// The elements of the next step.
    ///
    /// # Errors
    /// Those of [`DistributedIterator::get_next`].
    #[track_caller]
    pub fn get_next(&mut self) -> Result<PerReplica<T>> {
        self.pass.get_next()
    }

    /// The elements of the next step; `None` at the end.
    ///
    /// # Errors
    /// Those of [`DistributedIterator::get_next_as_optional`].
    #[track_caller]
    pub fn get_next_as_optional(&mut self) -> Result<Option<PerReplica<T>>> {
        self.pass.get_next_as_optional()
    }

    /// Dtypes and shapes of what each replica gets, as far as the pipeline tells.
    #[doc(alias = "output_shapes")]
    #[doc(alias = "output_types")]
    pub fn element_spec(&self) -> Option<PerReplica<ElementSpec>> {
        self.dataset.element_spec()
    }
}

/// Where [`Legacy::experimental_run`](super::Legacy::experimental_run) takes the inputs of a step: the next ones of an [`InputIterator`], or `()` for none.
pub trait Inputs {
    /// What a replica gets.
    type Element;
    /// What all of them get.
    type Step: Distributed<Local = Self::Element>;

    /// The inputs of one step.
    ///
    /// # Errors
    /// Those of [`InputIterator::get_next`].
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
