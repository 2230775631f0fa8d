//! One program that schedules functions on the workers of a cluster.
//!
//! | file | what it is |
//! |---|---|
//! | `builder` | the settings of a [`ClusterCoordinator`] |
//! | `connect` | how workers are reached, in this process or others |
//! | `handles` | what stands behind [`PerWorker`] and [`RemoteValue`] |
//! | `fetch` | results in structures |

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
use distribute_coordinator::{Call, Coordinator, FunctionId};
use handles::{ResourceOf, ResultOf};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Schedules [remote functions](mod@crate::remote) on the workers of a [`ParameterServerStrategy`], which train without waiting for each
/// other.
///
/// Each closure, a function with its arguments, is run by one worker. Where that is lost, another one runs it; what each worker has made for itself is made
/// again when it is back, and its datasets go on where they were. A change of a variable that a closure makes is made once at most, however
/// often the closure is run.
///
/// ```
/// use distribute::prelude::*;
/// use distribute::remote::{PerWorker, WorkerContext};
/// use distribute::{ClusterCoordinator, LocalCluster, ParameterServerStrategy, Variable, params::FixedShardsPartitioner};
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
/// # What happens when something breaks
///
/// - A function that returns an error or panics: the next [`schedule`](Self::schedule), [`join`](Self::join) or [`done`](Self::done) says so, once, when all
///   others have ended or were cancelled; then the coordinator can be used again.
/// - A worker that is lost: its closure is run by another one; see [`Status`] for how often. Without any worker, waiting ends with an error after
///   [`timeout`](ClusterCoordinatorBuilder::timeout), and closures are kept.
/// - A parameter server that is lost: calls wait until it is back, or the strategy's timeout; then the closure is run again, some times.
/// - A closure that never ends fails after [`closure_timeout`](ClusterCoordinatorBuilder::closure_timeout), and its worker begins anew.
///
/// A clone is another handle of the same. What has not ended is dropped with the last.
#[doc(alias = "tf.distribute.experimental.coordinator.ClusterCoordinator")]
#[doc(alias = "tf.distribute.coordinator.ClusterCoordinator")]
#[derive(Clone)]
pub struct ClusterCoordinator(Arc<Scheduler>);

/// The coordinator of a strategy, whatever handles there are.
pub struct Scheduler {
    coordinator: Arc<Coordinator>,
    strategy: ParameterServerStrategy,
    sender: Sender,
}

impl Scheduler {
    /// The state of the workers and of what was scheduled.
    pub fn status(&self) -> Status {
        self.coordinator.status()
    }
}

impl ClusterCoordinator {
    /// The coordinator of a strategy's workers, when all of them have answered: in this process where the cluster is a
    /// [`LocalCluster`](crate::LocalCluster), otherwise those that [serve](crate::serve). A strategy has one: while it is there, this gives the same again.
    ///
    /// # Errors
    /// [`Error::Coordinator`](distribute_base::Error::Coordinator) with the workers that don't answer, or whose functions are not those of this program;
    /// [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) where two remote functions have one name.
    pub fn new(strategy: &ParameterServerStrategy) -> Result<Self> {
        Self::builder(strategy).build()
    }

    /// A builder for a coordinator with more settings.
    pub fn builder(strategy: &ParameterServerStrategy) -> ClusterCoordinatorBuilder {
        ClusterCoordinatorBuilder::new(strategy)
    }

    /// The strategy whose workers these are.
    pub fn strategy(&self) -> &ParameterServerStrategy {
        &self.0.strategy
    }

    /// Puts a function with its arguments into the queue, and says by what its result is had. It is run by any of the workers, in no order that
    /// could be counted on; where the queue is full, this waits for room.
    ///
    /// Arguments are a tuple: a [`&PerWorker`](PerWorker) for each parameter `&T`, and values for the others. What doesn't fit doesn't compile.
    ///
    /// # Errors
    /// [`Error::Coordinator`](distribute_base::Error::Coordinator) if a closure has failed of which nobody was told, or where there is no room and no worker.
    pub fn schedule<F: RemoteFunction>(
        &self,
        function: F,
        arguments: impl Args<F::Params>,
    ) -> Result<RemoteValue<F::Output>> {
        let _ = function;
        let call = self.call(F::id(), arguments.encode(self.0.sender)?);
        let remote = self.0.coordinator.schedule(call)?;
        Ok(RemoteValue::new(Arc::new(ResultOf(remote))))
    }

    /// A value that each worker makes for itself by a function, keeps, and makes again where it was lost: a model, say. Closures that take
    /// it wait until their worker has made it.
    ///
    /// One worker makes it first, with the variables that are not there yet; the others find these.
    ///
    /// # Errors
    /// [`Error::Coordinator`](distribute_base::Error::Coordinator) for an argument that has been let go of. That it cannot be made is the error of closures that take it.
    #[doc(alias = "_create_per_worker_resources")]
    pub fn create_per_worker_value<F: RemoteFunction>(
        &self,
        function: F,
        arguments: impl Args<F::Params>,
    ) -> Result<PerWorker<F::Output>> {
        let _ = function;
        self.create(F::id(), arguments.encode(self.0.sender)?)
    }

    /// A dataset that each worker makes for itself by a function, of which closures take [`Batches`]. Each worker goes through its own;
    /// [`input_context`](crate::remote::WorkerContext::input_context) says to the function which part of the data that is.
    ///
    /// # Errors
    /// Those of [`create_per_worker_value`](Self::create_per_worker_value).
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
        let resource = ResourceOf { id, sender: self.0.sender, coordinator: self.0.coordinator.clone() };
        Ok(PerWorker::new(Arc::new(resource)))
    }

    fn call(&self, function: FunctionId, arguments: Vec<distribute_coordinator::Argument>) -> Call {
        Call { function, arguments }
    }

    /// Waits until all closures have ended. Other threads that schedule wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Coordinator`](distribute_base::Error::Coordinator) if one has failed of which nobody was told: the others were cancelled. Or if no worker has been there for
    /// long.
    pub fn join(&self) -> Result<()> {
        Ok(self.0.coordinator.join()?)
    }

    /// The same, for at most so long.
    ///
    /// # Errors
    /// Those of [`join`](Self::join); that it was not within this time, and then everything goes on.
    pub fn join_within(&self, timeout: Duration) -> Result<()> {
        Ok(self.0.coordinator.join_timeout(timeout)?)
    }

    /// Whether all closures have ended.
    ///
    /// # Errors
    /// [`Error::Coordinator`](distribute_base::Error::Coordinator) if one has failed of which nobody was told, as [`join`](Self::join).
    pub fn done(&self) -> Result<bool> {
        Ok(self.0.coordinator.done()?)
    }

    /// Waits for results, in a structure of the same form: a [`RemoteValue`], a tuple, a `Vec`, an array or an `Option` of such.
    ///
    /// # Errors
    /// That of the first closure that has none: see [`RemoteValue::fetch`].
    pub fn fetch<S: Fetch>(&self, values: S) -> Result<S::Values> {
        values.fetch()
    }

    /// How many closures wait and have ended, and what each worker does.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> Weak<Scheduler> {
        Arc::downgrade(&self.0)
    }
}

/// Whether both are of the same strategy's workers.
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
