//! Every worker runs the whole program by itself, without a coordinator, against variables on parameter servers.
//!
//! | file | what it is |
//! |---|---|
//! | `roles` | what this process is: a pure function of the cluster |
//! | `local` | without a cluster |
//! | `progress` | whether the chief is ready, and which workers are through |

mod local;
mod progress;
mod roles;

use distribute_base::{Result, VariableAggregation};
use distribute_cluster::resolver::ClusterResolver;
use distribute_core::internal::{alone, prepare};
use distribute_core::{IndependentWorker, Strategy, Variable, handle};
use distribute_parameter_server::internal::{Assembled, Members, Role as Task, Servers};
use distribute_parameter_server::{ParameterServerBuilder, Serve};
use distribute_params::Placement;
use distribute_ps_client::ParameterServers;
use distribute_ps_client::internal::Makes;
use local::Local;
use progress::Progress;
use roles::Role;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const KIND: &str = "between_graph::ParameterServerStrategy";

/// One of several workers that each run the whole program, against variables on parameter servers that all of them share.
///
/// There is no coordinator. The replicas of this process train in lock step: their gradients become one update, which the servers make. Workers
/// don't wait for each other, and see what the others have changed when their next step begins. So `num_replicas_in_sync` counts the replicas
/// of this process, and what happens once in a step, such as counting [`global_step`](Self::global_step), happens once in a step of each worker.
///
/// The chief, or worker 0 where the cluster has none, makes variables; the others wait until these are there. A variable is that of its name,
/// also for a worker that was started again. Without a cluster, variables are in this process: on its device or, where it has several, on `cpu:0`.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{Job, LocalCluster, ParameterServerStrategy, Variable, between_graph};
/// use std::time::Duration;
///
/// let cluster = LocalCluster::new(2, 1)?;                                     // tasks of this process
/// let worker = |index| {
///     let settings = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver_of(Job::Worker.task(index)));
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

/// What this kind of strategy has beside the handle of every strategy.
struct Behind {
    /// The settings that `configure` takes over.
    settings: ParameterServerBuilder,
    worker: Option<Worker>,
}

/// What one has that trains against servers.
struct Worker {
    servers: Arc<ParameterServers>,
    /// The servers in other processes, where there are some.
    others: Option<Servers>,
    of: IndependentWorker,
    progress: Progress,
}

impl ParameterServerStrategy {
    // PSV1-1, PSV1-3
    /// The strategy of this process in the cluster that the environment names, with a replica on each of its first `num_gpus_per_worker`
    /// GPUs; with 0, one on the CPU.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    #[track_caller]
    pub fn new(num_gpus_per_worker: usize) -> Result<Self> {
        Self::of(ParameterServerBuilder::default().gpus_per_worker(num_gpus_per_worker))
    }

    /// The strategy of this process with other settings: who takes part, its devices, how variables are cut and placed, how long to wait.
    /// All workers have the same partitioner and placement.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) where it is not known which task of the cluster this process is, where it
    /// is a parameter server or an evaluator, and where servers cannot be reached, which it names;
    /// [`Error::Cluster`](distribute_base::Error::Cluster) for a cluster without parameter servers, or with tasks that don't belong there;
    /// [`Error::Device`](distribute_base::Error::Device) for a device that this build does not support.
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
                // The others wait for what the chief makes.
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
    /// The strategy of this process in another cluster, with the settings of this one, its devices among them: what is done in place in
    /// TensorFlow. The variables of this one stay where they are.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    #[track_caller]
    pub fn configure(&self, cluster: impl ClusterResolver + 'static) -> Result<Self> {
        Self::of(self.1.settings.clone().cluster_resolver(cluster))
    }

    /// How many workers there are, the chief among them; 1 without a cluster.
    pub fn workers(&self) -> usize {
        self.1.worker.as_ref().map_or(1, |worker| worker.of.workers)
    }

    /// Which of them this is. The chief is 0.
    pub fn worker(&self) -> usize {
        self.1.worker.as_ref().map_or(0, |worker| worker.of.worker)
    }

    /// Which server has which variable or shard, of those that this process has made or found; `None` without a cluster.
    pub fn placement(&self) -> Option<Placement> {
        self.1.worker.as_ref().map(|worker| worker.servers.placement())
    }

    // PSV1-4
    /// The number of steps that all workers together have made: a variable `global_step`, which the program counts. Added to in `run`, it grows
    /// by what replica 0 adds.
    ///
    /// # Errors
    /// [`Error::WrongContext`](distribute_base::Error::WrongContext) inside of `run`; those of a server, or the chief has not made it.
    #[doc(alias = "tf.compat.v1.train.get_or_create_global_step")]
    #[track_caller]
    pub fn global_step(&self) -> Result<Variable> {
        let step = Variable::builder("global_step", 0i64).aggregation(VariableAggregation::OnlyFirstReplica);
        self.scope(|| step.trainable(false).get_or_create())
    }

    /// The chief says that the training is prepared: variables are made and, where something was saved, restored. The others wait for that,
    /// at most for `patience`, so that none makes steps that are overwritten.
    ///
    /// # Errors
    /// Of a server; [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) where the chief is not ready in time.
    pub fn ready(&self, patience: Duration) -> Result<()> {
        self.1.worker.as_ref().map_or(Ok(()), |worker| worker.progress.ready(patience))
    }

    /// Says that this worker is through with the servers, when its updates have arrived. The chief then waits until all workers are, at most for
    /// `patience`, and ends the servers in other processes. So each worker calls this at the end of the program.
    ///
    /// # Errors
    /// Of an update that did not arrive, and of a server; [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) that names the workers
    /// that are not through in time.
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

/// Serves variables, if `resolver` says that this process is a parameter server, until the chief [ends](ParameterServerStrategy::finish) it. Says
/// whether it did: then the program ends here. Workers go on.
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
/// Those of [`Serve::run`].
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
