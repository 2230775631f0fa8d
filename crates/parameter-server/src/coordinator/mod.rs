//! [`ClusterCoordinator`], with which a program schedules functions on the workers of a cluster.
//!
//! | file | contents |
//! |---|---|
//! | `builder` | the settings of a [`ClusterCoordinator`] |
//! | `connect` | connections to workers, in this process or others |
//! | `handles` | the implementation of [`PerWorker`] and [`RemoteValue`] |
//! | `fetch` | fetching nested results |

mod builder;
mod connect;
mod fetch;
mod handles;

pub use builder::ClusterCoordinatorBuilder;
pub use distribute_coordinator::{Status, WorkerStatus};
pub use fetch::Fetch;

use crate::remote::{Args, Batches, IntoBatches, PerWorker, RemoteFunction, RemoteValue, Sender};
use crate::strategy::ParameterServerStrategy;
use distribute_base::Result;
use distribute_coordinator::{Call, Coordinator, FunctionId, Options};
use handles::{CoordinatorResource, CoordinatorResult};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Schedules [remote functions](mod@crate::remote) on the workers of a [`ParameterServerStrategy`], which train
/// asynchronously.
///
/// A closure is a function with its arguments, and is run by one worker. If that worker disconnects, another worker
/// runs the closure. When a worker reconnects, it recreates its values, and its datasets resume from their positions.
/// Each change that a closure makes to a variable is applied at most once, even if the closure is retried.
///
/// ```
/// use distribute::prelude::*;
/// use distribute::remote::{PerWorker, WorkerContext};
/// use distribute::parameter_server::FixedShardsPartitioner;
/// use distribute::{ClusterCoordinator, LocalCluster, ParameterServerStrategy, Variable};
///
/// #[distribute::remote]
/// fn make_counter(worker: &WorkerContext) -> distribute::Result<Variable> {
///     worker.strategy().scope(|| Variable::new("counter", 0i64))
/// }
///
/// #[distribute::remote]
/// fn count(_worker: &WorkerContext, counter: &Variable, by: i64) -> distribute::Result<i64> {
///     counter.assign_add(by)?;
///     Ok(2 * by)
/// }
///
/// let cluster = LocalCluster::new(2, 2)?; // tasks of this process
/// let strategy = ParameterServerStrategy::new(cluster.resolver(), FixedShardsPartitioner::new(2)?)?;
/// let coordinator = ClusterCoordinator::new(&strategy)?;
/// let counter: PerWorker<Variable> = coordinator.create_per_worker_value(make_counter, ())?;
/// let doubled = coordinator.schedule(count, (&counter, 21))?;
/// for by in 0..10 {
///     coordinator.schedule(count, (&counter, by))?;
/// }
/// coordinator.join()?;
/// assert_eq!(doubled.fetch()?, 42);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Failures
///
/// - A function returns an error or panics: the next [`schedule`](Self::schedule), [`join`](Self::join) or
///   [`done`](Self::done) returns the error once. By then, all other closures have finished or have been cancelled. The
///   coordinator can then be used again.
/// - A worker disconnects: another worker runs its closure, and [`Status`] counts the disconnection. If no worker is
///   left, calls that wait return an error after [`timeout`](ClusterCoordinatorBuilder::timeout), and closures stay in
///   the queue.
/// - A parameter server disconnects: calls wait until it reconnects or the strategy's timeout has passed.
///   After a timeout the closure is retried a limited number of times.
/// - A closure never returns: it fails after [`closure_timeout`](ClusterCoordinatorBuilder::closure_timeout),
///   and its worker is disconnected until it answers again.
///
/// Clones refer to the same coordinator. When the last clone is dropped, unfinished closures are discarded.
#[doc(alias = "tf.distribute.experimental.coordinator.ClusterCoordinator")]
#[doc(alias = "tf.distribute.coordinator.ClusterCoordinator")]
#[derive(Clone)]
pub struct ClusterCoordinator(Arc<Scheduler>);

/// The state that all handles to a strategy's coordinator share.
pub struct Scheduler {
    coordinator: Arc<Coordinator>,
    /// The settings with which the coordinator was created.
    options: Options,
    strategy: ParameterServerStrategy,
    sender: Sender,
}

impl Scheduler {
    /// Returns the state of the workers and of all scheduled closures.
    pub fn status(&self) -> Status {
        self.coordinator.status()
    }
}

impl ClusterCoordinator {
    /// Waits until all workers of the strategy have answered, and creates the strategy's coordinator. The workers are
    /// in this process if the cluster is a [`LocalCluster`](distribute_ps_client::LocalCluster). Otherwise they are the
    /// processes that [serve](crate::serve). A strategy has only one coordinator. If the coordinator already exists,
    /// this returns another handle to it.
    ///
    /// # Errors
    /// - [`Error::Coordinator`](distribute_base::Error::Coordinator): workers do not answer, or their
    ///   functions differ from those of this program. The error lists the workers.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): two remote functions have the same name,
    ///   the strategy was built with channels to servers in other processes, or another coordinator has begun a job at
    ///   the same time.
    /// - [`Error::Server`](distribute_base::Error::Server): a parameter server did not answer.
    pub fn new(strategy: &ParameterServerStrategy) -> Result<Self> {
        Self::builder(strategy).build()
    }

    /// Returns a builder for a coordinator with more settings.
    pub fn builder(strategy: &ParameterServerStrategy) -> ClusterCoordinatorBuilder {
        ClusterCoordinatorBuilder::new(strategy)
    }

    /// Returns the strategy whose workers run the closures.
    pub fn strategy(&self) -> &ParameterServerStrategy {
        &self.0.strategy
    }

    /// Queues a call and returns a handle to its result. Any worker may run the call, and calls may run in any order.
    /// If the queue is full, this blocks until there is space.
    ///
    /// Arguments are passed as a tuple: a [`&PerWorker`](PerWorker) for each parameter `&T`, and a value for
    /// each of the others. Arguments that do not match the parameters do not compile.
    ///
    /// # Errors
    /// - [`Error::Coordinator`](distribute_base::Error::Coordinator): an earlier closure failed and its error has not
    ///   been returned yet; or the call had to wait, and no worker was connected for longer than the timeout.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): an argument cannot be encoded, or belongs
    ///   to another coordinator.
    pub fn schedule<F: RemoteFunction>(
        &self,
        function: F,
        arguments: impl Args<F::Params>,
    ) -> Result<RemoteValue<F::Output>> {
        let _ = function;
        let call = self.call(F::id(), arguments.encode(self.0.sender)?);
        let remote = self.0.coordinator.schedule(call)?;
        Ok(RemoteValue::new(Arc::new(CoordinatorResult(remote))))
    }

    /// Creates a value, such as a model, on each worker by calling a function there. Each worker keeps its
    /// value, and recreates it after reconnecting. Closures that use the value wait until their worker has
    /// created it.
    ///
    /// The first worker that runs the function also creates missing variables; the other workers use these
    /// variables.
    ///
    /// # Errors
    /// - [`Error::Coordinator`](distribute_base::Error::Coordinator): the last handle to an argument was dropped.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): an argument cannot be encoded, or belongs
    ///   to another coordinator.
    ///
    /// If the function fails, closures that use the value return its error.
    #[doc(alias = "_create_per_worker_resources")]
    pub fn create_per_worker_value<F: RemoteFunction>(
        &self,
        function: F,
        arguments: impl Args<F::Params>,
    ) -> Result<PerWorker<F::Output>> {
        let _ = function;
        self.create(F::id(), arguments.encode(self.0.sender)?)
    }

    /// Creates a dataset on each worker by calling a function there. Closures receive it as [`Batches`]. Each
    /// worker iterates over its own dataset. The function gets its shard of the data from
    /// [`input_context`](crate::remote::WorkerContext::input_context).
    ///
    /// # Errors
    /// Returns the errors of [`create_per_worker_value`](Self::create_per_worker_value).
    pub fn create_per_worker_dataset<F: RemoteFunction>(
        &self,
        function: F,
        arguments: impl Args<F::Params>,
    ) -> Result<PerWorker<Batches<<F::Output as IntoBatches>::Element>>>
    where
        F::Output: IntoBatches,
    {
        let _ = function;
        self.create(F::dataset_id(), arguments.encode(self.0.sender)?)
    }

    fn create<T>(
        &self,
        function: FunctionId,
        arguments: Vec<distribute_coordinator::Argument>,
    ) -> Result<PerWorker<T>> {
        let id = self.0.coordinator.create(self.call(function, arguments))?;
        let resource =
            CoordinatorResource { id, sender: self.0.sender, coordinator: self.0.coordinator.clone() };
        Ok(PerWorker::new(Arc::new(resource)))
    }

    fn call(&self, function: FunctionId, arguments: Vec<distribute_coordinator::Argument>) -> Call {
        Call { function, arguments }
    }

    /// Waits until all closures have finished. Until then, calls of [`schedule`](Self::schedule) from other threads
    /// block.
    ///
    /// # Errors
    ///
    /// - [`Error::Coordinator`](distribute_base::Error::Coordinator): a closure failed and its error has not been
    ///   returned yet (the other closures were cancelled), or no worker was connected for longer than the timeout.
    pub fn join(&self) -> Result<()> {
        Ok(self.0.coordinator.join()?)
    }

    /// Waits until all closures have finished, but no longer than `timeout`.
    ///
    /// # Errors
    /// Returns the errors of [`join`](Self::join), and an error if closures have not finished within `timeout`. These
    /// closures continue to run.
    pub fn join_within(&self, timeout: Duration) -> Result<()> {
        Ok(self.0.coordinator.join_timeout(timeout)?)
    }

    /// Returns `true` if all closures have finished. If a closure has failed, first waits until the others have
    /// finished or have been cancelled.
    ///
    /// # Errors
    /// - [`Error::Coordinator`](distribute_base::Error::Coordinator): a closure failed and its error has not
    ///   been returned yet, as in [`join`](Self::join).
    pub fn done(&self) -> Result<bool> {
        Ok(self.0.coordinator.done()?)
    }

    /// Waits for results, and returns them in the same nested structure as their handles. `values` is a
    /// [`RemoteValue`], or a tuple, a `Vec`, a slice or an `Option` of these.
    ///
    /// # Errors
    /// Returns the error of the first result in the structure that cannot be fetched; see [`RemoteValue::fetch`].
    pub fn fetch<S: Fetch>(&self, values: S) -> Result<S::Values> {
        values.fetch()
    }

    /// Returns the number of waiting and finished closures, and the state of each worker.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> Weak<Scheduler> {
        Arc::downgrade(&self.0)
    }
}

/// Compares identity: two handles are equal if they refer to the same coordinator.
impl PartialEq for ClusterCoordinator {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ClusterCoordinator {}

impl fmt::Debug for ClusterCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterCoordinator").field(&self.0.strategy).finish()
    }
}
