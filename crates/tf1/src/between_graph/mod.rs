//! Independent workers, which each run the complete program with variables on parameter servers, without a
//! coordinator.
//!
//! | file | contents |
//! |---|---|
//! | `roles` | the role of this process: a pure function of the cluster |
//! | `local` | training without a cluster |
//! | `progress` | whether the chief is ready, and which workers have finished |

mod local;
mod progress;
mod roles;

use distribute_base::{Result, VariableAggregation};
use distribute_cluster::resolver::ClusterResolver;
use distribute_core::internal::{alone, prepare};
use distribute_core::{IndependentWorker, Strategy, Variable, handle};
use distribute_parameter_server::internal::{Assembled, Members, Role as Task, Servers};
use distribute_parameter_server::{ParameterServerBuilder, Serve};
use distribute_ps_client::ParameterServers;
use distribute_ps_client::internal::Makes;
use distribute_ps_tables::Placement;
use local::Local;
use progress::Progress;
use roles::Role;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const KIND: &str = "between_graph::ParameterServerStrategy";

/// The strategy of an independent worker, which runs the complete program with variables on shared parameter servers.
///
/// There is no coordinator. The replicas of this process train synchronously: their gradients become one
/// update, which the servers apply. Workers do not wait for each other, and see the changes of other workers
/// when their next step begins. So `num_replicas_in_sync` is the number of replicas of this process. Anything
/// done once in a step, such as incrementing [`global_step`](Self::global_step), happens once in a step of
/// each worker.
///
/// The chief, or worker 0 if the cluster has none, creates variables; the others wait until these exist. A
/// variable is identified by its name, so a restarted worker finds the existing one. Without a cluster,
/// variables are in this process: on its device or, if it has several, on `cpu:0`.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{Job, LocalCluster, ParameterServerStrategy, Variable, between_graph};
/// use std::time::Duration;
///
/// let cluster = LocalCluster::new(2, 1)?;                                     // tasks of this process
/// let worker = |index| {
///     let resolver = cluster.resolver_of(Job::Worker.task(index));
///     let settings = ParameterServerStrategy::builder().cluster_resolver(resolver);
///     let strategy = between_graph::ParameterServerStrategy::of(settings.devices(["cpu:0", "cpu:1"]))?;
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
pub struct ParameterServerStrategy(Strategy, Arc<Behind>);
handle!(ParameterServerStrategy);

/// The state of this strategy in addition to the common handle.
struct Behind {
    /// The settings, which `configure` reuses.
    settings: ParameterServerBuilder,
    worker: Option<Worker>,
}

/// The state of a worker that trains with servers.
struct Worker {
    servers: Arc<ParameterServers>,
    /// The servers in other processes, if there are any.
    others: Option<Servers>,
    of: IndependentWorker,
    progress: Progress,
}

impl ParameterServerStrategy {
    // PSV1-1, PSV1-3
    /// Creates the strategy of this process in the cluster of the environment.
    ///
    /// The process has a replica on each of its first `num_gpus_per_worker` GPUs, or one on the CPU if the
    /// number is 0.
    ///
    /// # Errors
    /// Returns the errors of [`of`](Self::of).
    #[track_caller]
    pub fn new(num_gpus_per_worker: usize) -> Result<Self> {
        Self::of(ParameterServerBuilder::default().gpus_per_worker(num_gpus_per_worker))
    }

    /// Creates the strategy of this process with other settings: the cluster, the devices, the partitioner and
    /// placement of variables, and timeouts.
    ///
    /// All workers need the same partitioner and placement.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the task of this process in the
    ///   cluster is unknown, or is a parameter server or an evaluator.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): servers cannot be reached. The
    ///   error names them.
    /// - [`Error::Cluster`](distribute_base::Error::Cluster): the cluster has no parameter servers, or has
    ///   unexpected tasks.
    /// - [`Error::Device`](distribute_base::Error::Device): this build does not support a device.
    #[track_caller]
    pub fn of(settings: ParameterServerBuilder) -> Result<Self> {
        let (devices, options) = (settings.resolved_devices()?, settings.options()?);
        let resolver = settings.resolver()?;
        let spec = resolver.cluster_spec()?;
        match Role::of(&spec, resolver.task())? {
            Role::Local => {
                alone::warn(KIND);
                prepare(devices.len());
                let strategy = Strategy::new(Local { devices, options })?;
                Ok(Self(strategy, Arc::new(Behind { settings, worker: None })))
            }
            Role::Worker(task, of) => {
                let members = Members::of_worker(spec, task, of.workers)?;
                // Workers wait for the variables that the chief creates.
                let makes = if of.worker == 0 { Makes::Missing } else { Makes::None };
                let role = Task { kind: KIND, makes, independent: Some(of) };
                let assembled = settings.clone().assemble(devices, resolver, &members, role)?;
                let Assembled { strategy, servers, others } = assembled;
                servers.share();
                let progress = Progress::begin(servers.links(), of)?;
                let worker = Some(Worker { servers, others, of, progress });
                Ok(Self(strategy, Arc::new(Behind { settings, worker })))
            }
        }
    }

    // PSV1-13
    /// Creates the strategy of this process in another cluster, with the settings and devices of this one.
    ///
    /// TensorFlow does this in place. The variables of this strategy do not move.
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

    /// Returns the number of this worker. The chief is 0.
    pub fn worker(&self) -> usize {
        self.1.worker.as_ref().map_or(0, |worker| worker.of.worker)
    }

    /// Returns the server of each variable or shard that this process has created or found; `None` without a cluster.
    pub fn placement(&self) -> Option<Placement> {
        self.1.worker.as_ref().map(|worker| worker.servers.placement())
    }

    // PSV1-4
    /// Returns the number of steps of all workers together: a variable `global_step`, which the program increments.
    ///
    /// In `run`, it grows by the value that replica 0 adds.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): the call is inside `run`.
    /// - A server fails, or the chief has not created the variable.
    #[doc(alias = "tf.compat.v1.train.get_or_create_global_step")]
    #[track_caller]
    pub fn global_step(&self) -> Result<Variable> {
        let step = Variable::builder("global_step", 0i64).aggregation(VariableAggregation::OnlyFirstReplica);
        self.scope(|| step.trainable(false).get_or_create())
    }

    /// Signals, on the chief, that the training is prepared: variables are created and restored. Waits for
    /// this signal on the other workers.
    ///
    /// The wait is at most `patience`. It ensures that no worker makes steps that are overwritten.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the chief is not ready within
    ///   `patience`.
    /// - The error of a server.
    pub fn ready(&self, patience: Duration) -> Result<()> {
        self.1.worker.as_ref().map_or(Ok(()), |worker| worker.progress.ready(patience))
    }

    /// Signals that this worker has finished with the servers, after its updates have been applied.
    ///
    /// Each worker calls this at the end of the program. The chief then waits for all workers, at most for
    /// `patience`, and shuts down the servers in other processes.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): workers have not finished within
    ///   `patience`. The error names them.
    /// - The error of a server, or of an update that it did not receive.
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

/// Serves variables until the chief [finishes](ParameterServerStrategy::finish), if this process is a
/// parameter server of `resolver`.
///
/// Returns true if it was one; in that case the program should exit. On workers it returns false immediately.
///
/// ```no_run
/// use distribute::{TfConfigClusterResolver, between_graph};
/// # fn main() -> distribute::Result<()> {
/// if between_graph::serve(&TfConfigClusterResolver::from_env()?)? {
///     return Ok(());
/// }
/// let strategy = between_graph::ParameterServerStrategy::new(0)?;
/// // … train …
/// strategy.finish(std::time::Duration::from_secs(600))?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the errors of [`Serve::run`].
pub fn serve(resolver: &dyn ClusterResolver) -> Result<bool> {
    Serve::new().parameter_servers_alone().run(resolver)
}

impl fmt::Debug for ParameterServerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple(KIND);
        tuple.field(&self.0);
        self.1.worker.iter().for_each(|worker| {
            tuple.field(&worker.of).field(&worker.servers);
        });
        tuple.finish()
    }
}
