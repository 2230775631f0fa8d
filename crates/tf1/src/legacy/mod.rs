//! TensorFlow's older names, for programs that are ported without changes. The documentation of each item names its
//! current equivalent.
//!
//! | older name | current name |
//! |---|---|
//! | [`make_dataset_iterator`](Legacy::make_dataset_iterator) | [`Strategy::distribute_dataset`] |
//! | [`make_input_fn_iterator`](Legacy::make_input_fn_iterator) | [`Strategy::distribute_datasets_from_function`] |
//! | [`make_numpy_dataset`](Legacy::make_numpy_dataset) | [`Dataset::from_slices`] |
//! | [`experimental_run`](Legacy::experimental_run) | [`Strategy::run`] |
//! | [`call_for_each_replica`](Legacy::call_for_each_replica) | [`Strategy::run`] |
//! | [`update_config_proto`](Legacy::update_config_proto), [`SessionConfig`] | none: there are no sessions |

mod iterator;
mod session;

#[doc(alias = "tf.distribute.InputIterator")]
pub use iterator::InputIterator;
pub use iterator::{InputSource, Inputs};
#[doc(alias = "tf.compat.v1.ConfigProto")]
#[doc(alias = "ConfigProto")]
pub use session::SessionConfig;

use distribute_base::{Error, Result};
use distribute_core::internal::require_outside_of_run;
use distribute_core::{InputOptions, InputReplicationMode, ReplicaContext, Strategy};
use distribute_data::numpy::{read_npy, read_npz};
use distribute_data::{Dataset, InputContext, Location};
use distribute_tensor::Nest;
use distribute_values::{Distributed, PerReplica};

/// Methods of TensorFlow's strategies that have since been renamed or replaced, for [`Strategy`]. Import this trait to
/// port a program without changing its calls.
pub trait Legacy {
    /// Creates an iterator over a batched dataset.
    ///
    /// With a strategy for [between-graph training](crate::between_graph::AsyncWorkerStrategy), each batch is for *one
    /// replica*: every replica receives the next batch, and workers take turns. With other strategies, each batch is a
    /// *global* batch, which is split as in [`distribute_dataset`](Strategy::distribute_dataset).
    ///
    /// # Errors
    /// Returns the errors of [`distribute_dataset`](Strategy::distribute_dataset).
    ///
    /// ```
    /// # use distribute::{cluster::{ClusterSpec, resolver::SimpleClusterResolver}, prelude::*};
    /// use distribute::legacy::Legacy;
    /// use distribute::{between_graph, data::Dataset};
    /// # let none = SimpleClusterResolver::new(ClusterSpec::new());
    /// # let two = distribute::ParameterServerStrategy::builder().cluster_resolver(none).devices(["cpu:0", "cpu:1"]);
    /// let ids = |piece: HostTensor| piece.to_vec::<i64>().unwrap();
    ///
    /// let mirrored = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let mut inputs = mirrored.make_dataset_iterator(Dataset::range(8).batch(4))?;
    /// inputs.initialize();
    /// assert_eq!(inputs.get_next()?.map(ids).values(), [[0, 1], [2, 3]]);
    ///
    /// let between = between_graph::AsyncWorkerStrategy::of(two)?;
    /// let mut inputs = between.make_dataset_iterator(Dataset::range(8).batch(2))?;
    /// assert_eq!(inputs.get_next()?.map(ids).values(), [[0, 1], [2, 3]]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.make_dataset_iterator")]
    fn make_dataset_iterator<T: Nest + 'static>(&self, dataset: Dataset<T>) -> Result<InputIterator<T>>;

    /// Creates an iterator over the dataset that
    /// [`distribute_datasets_from_function`](Strategy::distribute_datasets_from_function) creates from `input_fn`.
    ///
    /// `input_fn` returns a dataset, or a function that returns one element at a time.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the mode is not [`PerWorker`](InputReplicationMode::PerWorker).
    /// - The errors of `distribute_datasets_from_function`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::input::InputReplicationMode;
    /// use distribute::legacy::{InputSource, Legacy};
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
    fn make_input_fn_iterator<T: Nest + 'static, S: Into<InputSource<T>>>(
        &self,
        input_fn: impl Fn(InputContext) -> Result<S> + Send + Sync + 'static,
        replication_mode: InputReplicationMode,
    ) -> Result<InputIterator<T>>;

    /// Creates a dataset from the rows of a nest of arrays. This is [`Dataset::from_slices`] under TensorFlow's name.
    ///
    /// The arrays are shared, not copied. With a `Vec` of arrays, each element is a `Vec` with one row of each
    /// array.
    ///
    /// # Errors
    /// - [`Error::Data`]: there are no arrays, an array is a scalar, or the arrays have different numbers of rows.
    /// - [`Error::WrongContext`]: called inside `run`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::legacy::Legacy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let (x, y) = (HostTensor::new(vec![0f32; 6], [3, 2])?, HostTensor::vector(vec![0i64, 1, 2]));
    /// let data = strategy.make_numpy_dataset((x, y))?;
    /// let batches = strategy.distribute_dataset(data.batch(2))?;
    /// assert_eq!(batches.iter().count(), 2);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.experimental_make_numpy_dataset")]
    fn make_numpy_dataset<T: Nest>(&self, arrays: T) -> Result<Dataset<T>>;

    /// Creates a dataset like [`make_numpy_dataset`](Legacy::make_numpy_dataset), from the arrays in a file.
    ///
    /// For a `.npy` file, `T` is a tensor. The arrays in a `.npz` file have names, so `T` is a map or a tree.
    ///
    /// # Errors
    /// - The errors of `make_numpy_dataset`.
    /// - The errors of [`read_npy`] and [`read_npz`], which name the file and the offset in it.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::numpy::write_npy;
    /// use distribute::legacy::Legacy;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("x.npy");
    /// write_npy(&path, &HostTensor::new(vec![0f32; 6], [3, 2])?)?;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let rows = strategy.make_numpy_dataset_from_file::<HostTensor>(&path)?;
    /// assert_eq!(rows.batch(3).iter().next().unwrap()?.dims(), [3, 2]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    fn make_numpy_dataset_from_file<T: Nest>(&self, file: impl Into<Location>) -> Result<Dataset<T>>;

    /// Runs a step with the next inputs of an iterator, one for each replica. If `inputs` is `()`, there are no inputs.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`]: the iterator is at its end.
    /// - The other errors of [`InputIterator::get_next`].
    /// - The errors of [`Strategy::run`].
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::legacy::Legacy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let mut inputs = strategy.make_dataset_iterator(Dataset::range(4).batch(2))?;
    /// let first = strategy.experimental_run(|_ctx, ids| Ok(ids.to_vec::<i64>()?), &mut inputs)?;
    /// let second = strategy.experimental_run(|_ctx, ids| Ok(ids.to_vec::<i64>()?), &mut inputs)?;
    /// assert_eq!([first.values(), second.values()], [[[0], [1]], [[2], [3]]]);
    /// let ids = strategy.experimental_run(|ctx, ()| Ok(ctx.replica_id_in_sync_group()), ())?;
    /// assert_eq!(ids.values(), [0, 1]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.experimental_run")]
    fn experimental_run<I: Inputs, R: Send>(
        &self,
        body: impl Fn(&ReplicaContext, I::Element) -> Result<R> + Sync,
        inputs: I,
    ) -> Result<PerReplica<R>>;

    /// Calls [`Strategy::run`] with the older order of arguments.
    ///
    /// # Errors
    /// Returns the errors of [`Strategy::run`].
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::legacy::Legacy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.call_for_each_replica(|ctx, first| Ok(first + ctx.replica_id_in_sync_group()), 10usize)?;
    /// assert_eq!(ids.values(), [10, 11]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    fn call_for_each_replica<A: Distributed, R: Send>(
        &self,
        body: impl Fn(&ReplicaContext, A::Local) -> Result<R> + Sync,
        args: A,
    ) -> Result<PerReplica<R>>;

    /// Returns a copy of `config` with the settings that this strategy needs in a session. See [`SessionConfig`].
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::legacy::{Legacy, SessionConfig};
    /// let before = SessionConfig::default();
    /// let after = MirroredStrategy::cpus(2)?.update_config_proto(&before)?;
    /// assert!(after.isolate_session_state && !before.isolate_session_state);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Cluster`]: the cluster of the strategy cannot be resolved.
    #[doc(alias = "tf.distribute.Strategy.update_config_proto")]
    fn update_config_proto(&self, config: &SessionConfig) -> Result<SessionConfig>;
}

impl Legacy for Strategy {
    // LEG-1, PSV1-12
    #[track_caller]
    fn make_dataset_iterator<T: Nest + 'static>(&self, dataset: Dataset<T>) -> Result<InputIterator<T>> {
        if self.extended().independent().is_none() {
            return Ok(InputIterator::new(self.distribute_dataset(dataset)?));
        }
        let part = move |context: InputContext| match context.num_input_pipelines {
            0 | 1 => Ok(dataset.clone()),
            workers => Ok(dataset.shard(workers, context.input_pipeline_id)),
        };
        Ok(InputIterator::new(self.distribute_datasets_from_function(part)?))
    }

    #[track_caller]
    fn make_input_fn_iterator<T: Nest + 'static, S: Into<InputSource<T>>>(
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
        // A callable should be called when its element is needed, not earlier.
        let options = InputOptions { per_replica_buffer_size: 0, ..Default::default() };
        let make = move |context| Ok(input_fn(context)?.into().into_dataset());
        Ok(InputIterator::new(self.distribute_datasets_from_function_with(options, make)?))
    }

    fn make_numpy_dataset<T: Nest>(&self, arrays: T) -> Result<Dataset<T>> {
        require_outside_of_run("make_numpy_dataset", "create datasets before run")?;
        Ok(Dataset::from_slices(arrays)?)
    }

    fn make_numpy_dataset_from_file<T: Nest>(&self, file: impl Into<Location>) -> Result<Dataset<T>> {
        let file = file.into();
        let arrays = if file.to_string().ends_with(".npz") {
            read_npz(file)?.into_tree()
        } else {
            read_npy(file)?.into_tree()
        };
        Ok(self.make_numpy_dataset(arrays)?.typed())
    }

    #[track_caller]
    fn experimental_run<I: Inputs, R: Send>(
        &self,
        body: impl Fn(&ReplicaContext, I::Element) -> Result<R> + Sync,
        inputs: I,
    ) -> Result<PerReplica<R>> {
        self.run(inputs.step()?, body)
    }

    #[track_caller]
    fn call_for_each_replica<A: Distributed, R: Send>(
        &self,
        body: impl Fn(&ReplicaContext, A::Local) -> Result<R> + Sync,
        args: A,
    ) -> Result<PerReplica<R>> {
        self.run(args, body)
    }

    fn update_config_proto(&self, config: &SessionConfig) -> Result<SessionConfig> {
        session::updated(self, config)
    }
}
