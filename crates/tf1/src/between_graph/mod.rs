//! Independent workers, which each run the complete program with variables on parameter servers, without a
//! coordinator.
//!
//! | file | contents |
//! |---|---|
//! | `membership` | whether this process trains alone or as one of several workers: a pure function of the cluster |
//! | `local` | training without a cluster |
//! | `progress` | a record of whether the chief is ready, and of the workers that have finished |

mod local;
mod membership;
mod progress;

use distribute_base::{Result, VariableAggregation};
use distribute_cluster::resolver::ClusterResolver;
use distribute_core::checkpoint::{Reader, Restore, Writer};
use distribute_core::internal::{prepare, warn_single};
use distribute_core::{Checkpointed, IndependentWorker, Strategy, Variable};
use distribute_parameter_server::internal::{Assembled, Members, TaskSettings};
use distribute_parameter_server::{ParameterServerStrategyBuilder, Role, ServeBuilder};
use distribute_ps_client::ParameterServers;
use distribute_ps_client::internal::{CreationPolicy, Servers};
use distribute_ps_tables::Placement;
use local::Local;
use membership::Membership;
use progress::Progress;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

const KIND: &str = "between_graph::AsyncWorkerStrategy";

/// The strategy of an independent worker, which runs the complete program with variables on shared parameter servers.
///
/// There is no coordinator. The replicas of this process train synchronously: their gradients are combined into one
/// update, which the servers apply. Workers do not wait for each other. The changes of other workers become visible
/// when a worker's next step begins. `num_replicas_in_sync` is therefore the number of replicas of this process.
/// Anything done once per step, such as incrementing [`global_step`](Self::global_step), is done once per step of each
/// worker.
///
/// The chief (worker 0 if the cluster has no chief) creates variables, and the others wait until these exist. Variables
/// are identified by name, so a restarted worker finds the existing ones. Without a cluster, variables are stored in
/// this process: on its device or, if it has several, on `cpu:0`.
///
/// An `AsyncWorkerStrategy` dereferences to [`Strategy`], whose methods (`scope`, `replicate`, `run`, …) can be called
/// on it directly. Pass `&strategy` to functions that take a `&Strategy`. Clones refer to the same strategy.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{LocalCluster, ParameterServerStrategy, Variable, between_graph, cluster::Job};
/// use std::time::Duration;
///
/// let cluster = LocalCluster::new(2, 1)?;                                     // tasks of this process
/// let worker = |index| {
///     let resolver = cluster.resolver_of(Job::Worker.task(index));
///     let settings = ParameterServerStrategy::builder().cluster_resolver(resolver);
///     let strategy = between_graph::AsyncWorkerStrategy::of(settings.devices(["cpu:0", "cpu:1"]))?;
///     let steps = strategy.global_step()?;                                    // made by worker 0, found by worker 1
///     while steps.read::<i64>()? < 10 {
///         strategy.run((), |_ctx, ()| steps.assign_add(1i64))?;               // once for both replicas
///     }
///     strategy.finish(Duration::from_secs(60))?;                              // worker 0 waits for the other
///     distribute::Ok(strategy.is_chief())
/// };
/// let chiefs = std::thread::scope(|scope| {
///     let workers = [0, 1].map(|index| scope.spawn(move || worker(index)));
///     workers.map(|worker| worker.join().unwrap())
/// });
/// assert!(chiefs[0].as_ref().is_ok_and(|chief| *chief) && chiefs[1].as_ref().is_ok_and(|chief| !chief));
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.contrib.distribute.ParameterServerStrategy")]
#[doc(alias = "tf.compat.v1.distribute.experimental.ParameterServerStrategy")]
#[derive(Clone)]
pub struct AsyncWorkerStrategy(Strategy, Arc<Inner>);

impl Deref for AsyncWorkerStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.0
    }
}

impl From<AsyncWorkerStrategy> for Strategy {
    fn from(strategy: AsyncWorkerStrategy) -> Strategy {
        strategy.0
    }
}

impl Checkpointed for AsyncWorkerStrategy {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        Checkpointed::save(&self.0, prefix, writer)
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        Checkpointed::restore(&self.0, prefix, from)
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(&self.0)
    }
}

/// The state of this strategy that the common [`Strategy`] does not have.
struct Inner {
    /// The settings of this strategy, for [`AsyncWorkerStrategy::configure`].
    settings: ParameterServerStrategyBuilder,
    worker: Option<Worker>,
}

/// The state of a worker that trains with parameter servers.
struct Worker {
    servers: Arc<ParameterServers>,
    /// The servers in other processes; `None` if all are in this one.
    others: Option<Servers>,
    of: IndependentWorker,
    progress: Progress,
}

impl AsyncWorkerStrategy {
    // PSV1-1, PSV1-3
    /// Creates the strategy of this process in the cluster from the environment.
    ///
    /// The process has a replica on each of its first `num_gpus_per_worker` GPUs. If `num_gpus_per_worker` is 0, it has
    /// a single replica on the CPU.
    ///
    /// # Errors
    /// Returns the errors of [`of`](Self::of).
    #[track_caller]
    pub fn new(num_gpus_per_worker: usize) -> Result<Self> {
        Self::of(ParameterServerStrategyBuilder::default().gpus_per_worker(num_gpus_per_worker))
    }

    /// Creates the strategy of this process with the given settings: the cluster, the devices, the partitioner and the
    /// placement of variables, and timeouts. In a cluster, waits for the servers.
    ///
    /// All workers must use the same partitioner and placement.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the task of this process in the cluster
    ///   is unknown, or is a parameter server or an evaluator; or a setting is not supported.
    /// - [`ErrorKind::ServerUnavailable`](distribute_base::ErrorKind::ServerUnavailable): servers cannot be
    ///   reached. The error names them.
    /// - [`Error::Cluster`](distribute_base::Error::Cluster): the cluster cannot be resolved, has no parameter servers,
    ///   has unexpected tasks, or does not contain this task.
    /// - [`Error::Device`](distribute_base::Error::Device): this build does not support a device.
    #[track_caller]
    pub fn of(settings: ParameterServerStrategyBuilder) -> Result<Self> {
        let (devices, options) = (settings.resolved_devices()?, settings.options()?);
        let resolver = settings.resolver()?;
        let spec = resolver.cluster_spec()?;
        match Membership::of(&spec, resolver.task())? {
            Membership::Local => {
                warn_single::warn(KIND);
                prepare(devices.len());
                let strategy = Strategy::new(Local { devices, options })?;
                Ok(Self(strategy, Arc::new(Inner { settings, worker: None })))
            }
            Membership::Worker(task, of) => {
                let members = Members::of_worker(spec, task, of.workers)?;
                // Workers wait for the variables that the chief creates.
                let creation_policy =
                    if of.worker == 0 { CreationPolicy::CreateMissing } else { CreationPolicy::Wait };
                let task_settings = TaskSettings { kind: KIND, creation_policy, independent: Some(of) };
                let assembled = settings.clone().assemble(devices, resolver, &members, task_settings)?;
                let Assembled { strategy, servers, others } = assembled;
                servers.enable_sharing();
                let progress = Progress::begin(servers.channels(), of)?;
                let worker = Some(Worker { servers, others, of, progress });
                Ok(Self(strategy, Arc::new(Inner { settings, worker })))
            }
        }
    }

    // PSV1-13
    /// Creates a strategy with the settings and devices of this one, in a different cluster. Unlike in TensorFlow, this
    /// strategy does not change, and its variables are not moved.
    ///
    /// # Errors
    /// Returns the errors of [`of`](Self::of).
    #[track_caller]
    pub fn configure(&self, cluster: impl ClusterResolver + 'static) -> Result<Self> {
        Self::of(self.1.settings.clone().cluster_resolver(cluster))
    }

    /// Returns the number of workers, including the chief; 1 without a cluster.
    pub fn workers(&self) -> usize {
        self.1.worker.as_ref().map_or(1, |worker| worker.of.workers)
    }

    /// Returns the index of this worker. The chief has index 0.
    pub fn worker(&self) -> usize {
        self.1.worker.as_ref().map_or(0, |worker| worker.of.worker)
    }

    /// Returns the server of each variable or shard that this process has created or found; `None` without a cluster.
    pub fn placement(&self) -> Option<Placement> {
        self.1.worker.as_ref().map(|worker| worker.servers.placement())
    }

    // PSV1-4
    /// Returns the variable `global_step`, which counts the steps of all workers. The program must increment it. In
    /// `run`, it is incremented by the value of replica 0.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    /// - The error of a server, or an error if the chief has not created the variable.
    #[doc(alias = "tf.compat.v1.train.get_or_create_global_step")]
    #[track_caller]
    pub fn global_step(&self) -> Result<Variable> {
        let step = Variable::builder("global_step", 0i64).aggregation(VariableAggregation::OnlyFirstReplica);
        self.scope(|| step.not_trainable().get_or_create())
    }

    /// Signals, on the chief, that variables have been created and restored. On the other workers, waits up to
    /// `patience` for this signal. Call this before the first step: if the chief restored variables later, it would
    /// overwrite the updates of the step. Does nothing without a cluster.
    ///
    /// # Errors
    /// - [`ErrorKind::TimedOut`](distribute_base::ErrorKind::TimedOut): on another worker, the chief has not sent the
    ///   signal within `patience`.
    /// - The error of a server.
    pub fn ready(&self, patience: Duration) -> Result<()> {
        self.1.worker.as_ref().map_or(Ok(()), |worker| worker.progress.ready(patience))
    }

    /// Waits until the servers have applied this worker's updates, and signals that this worker has finished.
    ///
    /// Every worker must call this at the end of the program. On the chief, it then waits up to `patience` for all
    /// workers to finish, and shuts down the servers in other processes. Does nothing without a cluster.
    ///
    /// # Errors
    /// - [`ErrorKind::TimedOut`](distribute_base::ErrorKind::TimedOut): on the chief, workers have not finished within
    ///   `patience`. The error names them, and the servers keep running.
    /// - The error of a server, or of an update that a server could not apply.
    pub fn finish(&self, patience: Duration) -> Result<()> {
        let Some(Worker { servers, others, of, progress }) = &self.1.worker else { return Ok(()) };
        servers.session().flush()?;
        progress.finish()?;
        if of.worker != 0 {
            return Ok(());
        }
        progress.wait_for_all(patience)?;
        others.as_ref().map_or(Ok(()), |others| others.end(servers.timeout()))
    }
}

/// Serves variables until the chief [finishes](AsyncWorkerStrategy::finish), if this process is a parameter server of
/// the cluster. Otherwise returns immediately.
///
/// Returns the role of this process. If [`has_served`](Role::has_served) returns `true`, the program should exit.
///
/// ```no_run
/// use distribute::{between_graph, cluster::resolver::TfConfigClusterResolver};
/// # fn main() -> distribute::Result<()> {
/// if between_graph::serve(&TfConfigClusterResolver::from_env()?)?.has_served() {
///     return Ok(());
/// }
/// let strategy = between_graph::AsyncWorkerStrategy::new(0)?;
/// // … train …
/// strategy.finish(std::time::Duration::from_secs(600))?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the errors of [`ServeBuilder::run`].
pub fn serve(resolver: &dyn ClusterResolver) -> Result<Role> {
    ServeBuilder::new().parameter_servers_only().run(resolver)
}

impl fmt::Debug for AsyncWorkerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple(KIND);
        tuple.field(&self.0);
        self.1.worker.iter().for_each(|worker| {
            tuple.field(&worker.of).field(&worker.servers);
        });
        tuple.finish()
    }
}
