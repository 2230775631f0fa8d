//! Iterators and sources under TensorFlow's older names.

use super::{DistributedDataset, DistributedIterator, InputOptions, InputReplicationMode};
use crate::context::require_outside_of_run;
use crate::values::PerReplica;
use crate::{Error, Result, Strategy};
use distribute_data::numpy::{read_npy, read_npz};
use distribute_data::{Dataset, InputContext, Location};
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

/// The return value of the function given to [`Strategy::make_input_fn_iterator`].
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

    fn into_dataset(self) -> Dataset<T> {
        match self {
            InputSource::Dataset(dataset) => dataset,
            InputSource::Callable(call) => Dataset::from_generator(move || {
                let call = call.clone();
                std::iter::from_fn(move || call().transpose())
            }),
        }
    }
}

impl Strategy {
    /// [`distribute_dataset`](Strategy::distribute_dataset), as an iterator. The dataset is batched by the *global* batch
    /// size, as for TensorFlow's `MirroredStrategy`.
    ///
    /// # Errors
    /// Those of [`distribute_dataset`](Strategy::distribute_dataset).
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let mut inputs = strategy.make_dataset_iterator(Dataset::range(8).batch(4))?;
    /// inputs.initialize();
    /// let first = inputs.get_next()?;
    /// assert_eq!(first.map(|piece| piece.to_vec::<i64>().unwrap()).values(), [[0, 1], [2, 3]]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.make_dataset_iterator")]
    #[track_caller]
    pub fn make_dataset_iterator<T: Nest>(&self, dataset: Dataset<T>) -> Result<InputIterator<T>> {
        Ok(InputIterator::new(self.distribute_dataset(dataset)?))
    }

    /// [`distribute_datasets_from_function`](Strategy::distribute_datasets_from_function), as an iterator. The function
    /// makes a dataset, or a callable that makes one element at a time.
    ///
    /// # Errors
    /// Those of `distribute_datasets_from_function`; [`Error::InvalidArgument`] for a mode other than
    /// [`PerWorker`](InputReplicationMode::PerWorker).
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::{InputReplicationMode, InputSource};
    /// use std::sync::atomic::{AtomicI64, Ordering};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let mut inputs = strategy.make_input_fn_iterator(
    ///     |_context| {
    ///         let calls = AtomicI64::new(0);
    ///         Ok(InputSource::callable(move || Ok(Some(calls.fetch_add(1, Ordering::Relaxed)))))
    ///     },
    ///     InputReplicationMode::PerWorker,
    /// )?;
    /// assert_eq!(inputs.get_next()?.values(), [0, 1]);
    /// assert_eq!(inputs.get_next()?.values(), [2, 3]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.make_input_fn_iterator")]
    #[track_caller]
    pub fn make_input_fn_iterator<T: Nest + 'static, S: Into<InputSource<T>>>(
        &self,
        input_fn: impl Fn(InputContext) -> Result<S> + Send + Sync + 'static,
        replication_mode: InputReplicationMode,
    ) -> Result<InputIterator<T>> {
        if replication_mode != InputReplicationMode::PerWorker {
            return Err(Error::invalid(
                "make_input_fn_iterator",
                "the input replication mode has to be PerWorker; use distribute_datasets_from_function_with for PerReplica",
            ));
        }
        // A callable is called when its element is wanted, not before.
        let options = InputOptions { per_replica_buffer_size: 0, ..Default::default() };
        let make = move |context| Ok(input_fn(context)?.into().into_dataset());
        Ok(InputIterator::new(self.distribute_datasets_from_function_with(options, make)?))
    }

    /// A dataset of the rows of a nest of arrays: [`Dataset::from_slices`] under TensorFlow's name. The arrays are shared,
    /// not copied. A `Vec` of arrays is a structure, as everywhere: each element is a `Vec` of rows.
    ///
    /// # Errors
    /// [`Error::Data`] for a scalar, and for arrays with different numbers of rows; [`Error::WrongContext`] inside of
    /// `run`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let (x, y) = (HostTensor::new(vec![0f32; 6], [3, 2])?, HostTensor::vector(vec![0i64, 1, 2]));
    /// let data = strategy.make_numpy_dataset((x, y))?;
    /// let batches = strategy.distribute_dataset(data.batch(2))?;
    /// assert_eq!(batches.iter().count(), 2);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.experimental_make_numpy_dataset")]
    pub fn make_numpy_dataset<T: Nest>(&self, arrays: T) -> Result<Dataset<T>> {
        require_outside_of_run("make_numpy_dataset", "make datasets before run")?;
        Ok(Dataset::from_slices(arrays)?)
    }

    /// [`make_numpy_dataset`](Strategy::make_numpy_dataset) of the arrays in a file. For a `.npy`, `T` is a tensor; for a
    /// `.npz`, whose arrays have names, a map or a tree.
    ///
    /// # Errors
    /// Those of `make_numpy_dataset`, and of [`read_npy`] and [`read_npz`], which name the file and the offset in it.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::numpy::write_npy;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("x.npy");
    /// write_npy(&path, &HostTensor::new(vec![0f32; 6], [3, 2])?)?;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let rows = strategy.make_numpy_dataset_from_file::<HostTensor>(&path)?;
    /// assert_eq!(rows.batch(3).iter().next().unwrap()?.dims(), [3, 2]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn make_numpy_dataset_from_file<T: Nest>(&self, file: impl Into<Location>) -> Result<Dataset<T>> {
        let file = file.into();
        let arrays = if file.to_string().ends_with(".npz") {
            read_npz(file)?.into_tree()
        } else {
            read_npy(file)?.into_tree()
        };
        Ok(self.make_numpy_dataset(arrays)?.typed())
    }
}

impl<T: Nest> InputIterator<T> {
    fn new(dataset: DistributedDataset<T>) -> Self {
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
}
