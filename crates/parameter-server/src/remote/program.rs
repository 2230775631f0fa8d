//! [`RemoteProgram`]: the functions and the strategy with which a worker's process serves a coordinator.

use super::executor::WorkerExecutor;
use super::registry::Registry;
use crate::strategy::{
    ParameterServerStrategy, builder::ParameterServerStrategyBuilder, shared_settings::SharedSettings,
};
use bytes::Bytes;
use distribute_base::Result;
use distribute_cluster::resolver::ClusterResolver;
use distribute_cluster::{Job, Task};
use distribute_coordinator::{Executor, Failure, FailureKind, FunctionId, Program};
use std::fmt;
use std::sync::Arc;

/// The default maximum size of a result, in bytes.
const LARGEST_RESULT: usize = 64 << 20;

/// A function that creates the strategy of a worker. It gets the worker's index, and the settings that the
/// coordinator's strategy shares, if there are any.
type MakeStrategy = dyn Fn(usize, Option<&SharedSettings>) -> Result<ParameterServerStrategy> + Send + Sync;

/// The remote functions of this program, and a function that creates a worker's strategy.
pub struct RemoteProgram {
    registry: Arc<Registry>,
    strategy: Box<MakeStrategy>,
    largest_result: usize,
}

impl RemoteProgram {
    /// Creates the program for the worker that the resolver in `settings` assigns to this process. The worker's
    /// strategy is built from `settings`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): two functions have the same name.
    pub fn of_task(settings: ParameterServerStrategyBuilder) -> Result<Self> {
        Self::new(move |_, shared| {
            let settings = settings.clone();
            shared.map_or(Ok(settings.clone()), |shared| settings.with_shared(shared))?.build()
        })
    }

    /// Creates the program for all workers of a [`LocalCluster`](distribute_ps_client::LocalCluster). Their strategies
    /// have the same settings as the coordinator's. Returns `None` if the workers are in other processes.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): two functions have the same name.
    pub fn of_local_cluster(strategy: &ParameterServerStrategy) -> Result<Option<Self>> {
        let Some(cluster) = strategy.local_cluster() else { return Ok(None) };
        let settings = strategy.settings().clone();
        let of_worker = move |worker, _: Option<&SharedSettings>| {
            settings.clone().cluster_resolver(cluster.resolver_of(Job::Worker.task(worker))).build()
        };
        Self::new(of_worker).map(Some)
    }

    fn new(
        strategy: impl Fn(usize, Option<&SharedSettings>) -> Result<ParameterServerStrategy>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self> {
        let registry = Arc::new(Registry::of_program()?);
        Ok(Self { registry, strategy: Box::new(strategy), largest_result: LARGEST_RESULT })
    }

    /// Returns the remote functions of this program.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): two functions have the same name.
    pub(crate) fn functions_of_program() -> Result<Vec<FunctionId>> {
        Ok(Registry::of_program()?.ids())
    }

    /// Sets the maximum size of a result, in bytes; 64 MiB by default.
    pub fn largest_result(self, bytes: usize) -> Self {
        Self { largest_result: bytes, ..self }
    }
}

impl Program for RemoteProgram {
    fn functions(&self) -> Vec<FunctionId> {
        self.registry.ids()
    }

    fn start(&self, worker: usize, workers: usize, settings: &Bytes) -> Result<Arc<dyn Executor>, Failure> {
        let refuse = |text: String| Failure::new(FailureKind::InvalidArgument, text);
        let shared = if settings.is_empty() {
            None
        } else {
            Some(postcard::from_bytes(settings).map_err(|error| {
                refuse(format!(
                    "the coordinator's settings cannot be read: {error}; start all tasks from the same binary"
                ))
            })?)
        };
        let strategy = (self.strategy)(worker, shared.as_ref()).map_err(|error| refuse(error.to_string()))?;
        let task = strategy.cluster_resolver().and_then(ClusterResolver::task);
        if task != Some(Job::Worker.task(worker)) {
            let this = task.as_ref().map_or("no task".to_owned(), Task::to_string);
            let text = format!(
                "a coordinator expects worker {worker} here, but this process is {this} in its own cluster: start all \
                 tasks with the same cluster"
            );
            return Err(refuse(text));
        }
        if strategy.workers() != workers {
            let found = strategy.workers();
            let text = format!(
                "a coordinator has {workers} workers, but the cluster of this one has {found}: start all tasks with \
                 the same cluster"
            );
            return Err(refuse(text));
        }
        strategy.servers().set_worker(worker);
        Ok(Arc::new(WorkerExecutor::new(self.registry.clone(), worker, strategy, self.largest_result)))
    }
}

impl fmt::Debug for RemoteProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteProgram({} functions)", self.registry.ids().len())
    }
}
