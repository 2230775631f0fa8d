//! Tasks that serve other tasks: parameter servers, and workers that wait for a coordinator.

use crate::remote::RemoteProgram;
use crate::strategy::builder::ParameterServerStrategyBuilder;
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::resolver::{ClusterResolver, SimpleClusterResolver};
use distribute_cluster::{ClusterSpec, Job, Task};
use distribute_coordinator::Worker;
use distribute_log::info_or_stderr;
use distribute_net::Credentials;
use distribute_ps_server::{ParameterServer, REPLICAS, SERVICE, ServerOptions};
use distribute_rpc::{ClientBuilder, Server, ShutdownReason};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The default time that a task without a connected client waits before it exits.
const LEASE: Duration = Duration::from_secs(600);

/// The environment variable that names the folder for all servers on a machine.
const FOLDER: &str = "DISTRIBUTE_PS_FOLDER";

/// The environment variable that enables replication of servers.
const REPLICATED: &str = "DISTRIBUTE_PS_REPLICAS";

/// The role of this process in a training run with parameter servers, which [`serve`] returns.
#[must_use = "a process that has served should exit"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// This process has served as a parameter server or a worker. The chief has stopped it, or no client was connected
    /// for the length of the [lease](ServeBuilder::lease). The program should exit.
    Served(Task),
    /// This process runs the training loop, usually as the chief. The task is `None` if the cluster is empty.
    Trains(Option<Task>),
    /// This process evaluates the checkpoints of the training run.
    Evaluates(Task),
}

impl Role {
    /// Returns `true` if this process has served. The program should then exit.
    pub fn has_served(&self) -> bool {
        matches!(self, Self::Served(_))
    }

    /// Returns the role of a process that does not serve.
    fn of_client(task: Option<Task>) -> Self {
        match task {
            Some(task) if task.job == Job::Evaluator => Self::Evaluates(task),
            task => Self::Trains(task),
        }
    }
}

/// Serves other tasks if this process is a parameter server or a worker. Returns the role of this process; if it [has
/// served](Role::has_served), the program should exit.
///
/// A process that serves blocks until the chief [stops](distribute_core::Strategy::end_servers) it, or until no client
/// has been connected for the length of the [lease](ServeBuilder::lease). In any other process, this returns
/// immediately. Use [`ServeBuilder`] to change settings.
///
/// ```no_run
/// use distribute::prelude::*;
/// use distribute::cluster::resolver::TfConfigClusterResolver;
/// use distribute::parameter_server::MinSizePartitioner;
/// use distribute::ParameterServerStrategy;
///
/// # fn main() -> distribute::Result<()> {
/// let cluster = TfConfigClusterResolver::from_env()?;
/// if distribute::serve(&cluster)?.has_served() {
///     return Ok(());
/// }
/// // The chief trains.
/// let strategy = ParameterServerStrategy::new(cluster, MinSizePartitioner::new(256 << 10, 2)?)?;
/// // …
/// strategy.end_servers()?; // or they, and `distribute launch`, wait for ever
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the errors of [`ServeBuilder::run`].
pub fn serve(resolver: &dyn ClusterResolver) -> Result<Role> {
    ServeBuilder::new().run(resolver)
}

/// A builder of a task that serves others. It has more settings than [`serve`].
///
/// ```no_run
/// use distribute::cluster::resolver::TfConfigClusterResolver;
/// use distribute::parameter_server::ServeBuilder;
///
/// # fn main() -> distribute::Result<()> {
/// let cluster = TfConfigClusterResolver::from_env()?;
/// let role = ServeBuilder::new().folder("/var/lib/train").replicate_servers().run(&cluster)?;
/// if role.has_served() {
///     return Ok(());
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is served until `run` is called"]
#[derive(Clone, Debug, Default)]
pub struct ServeBuilder {
    folder: Option<PathBuf>,
    options: Option<ServerOptions>,
    credentials: Credentials,
    is_replicated: bool,
    strategy: Option<ParameterServerStrategyBuilder>,
    lease: Option<Duration>,
    only_parameter_servers: bool,
}

impl ServeBuilder {
    /// Creates a builder with default settings. A parameter server stores its tables in the folder that the environment
    /// variable `DISTRIBUTE_PS_FOLDER` names. If the variable is not set, tables are only kept in memory. Clients
    /// authenticate with the secret in `DISTRIBUTE_SECRET`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the folder in which parameter servers store their tables. Each server uses its own subfolder:
    /// `ps-0`, `ps-1`, …
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..self }
    }

    /// Sets the options of this parameter server. They include a folder, which takes precedence over
    /// [`folder`](Self::folder).
    pub fn options(self, options: ServerOptions) -> Self {
        Self { options: Some(options), ..self }
    }

    /// Replicates each parameter server to the next one, and the last to the first. Each acknowledged change is then on
    /// two servers: on its own server, including its folder if it has one, and in the memory of the next. A server that
    /// has lost its folder or machine is restored from its replica. The environment variable `DISTRIBUTE_PS_REPLICAS=1`
    /// has the same effect. All servers of a cluster must have the same setting.
    ///
    /// Each change is sent over the network a second time before it is acknowledged, and tables need twice
    /// the memory. While a server is unavailable, the server that it replicates does not accept changes.
    pub fn replicate_servers(self) -> Self {
        Self { is_replicated: true, ..self }
    }

    /// Sets how the tasks of the job authenticate each other and protect connections between machines. This replaces
    /// earlier settings, including [`job`](Self::job), and applies to all connections of a task. By default, the secret
    /// in `DISTRIBUTE_SECRET` is used, if it is set.
    pub fn credentials(self, credentials: impl Into<Credentials>) -> Self {
        Self { credentials: credentials.into(), ..self }
    }

    /// Sets the name of the job. The default is the value of `DISTRIBUTE_JOB` or, if that is not set, the file name of
    /// the program. See [`Credentials::job`].
    pub fn job(self, name: impl Into<String>) -> Self {
        Self { credentials: self.credentials.job(name), ..self }
    }

    /// Serves other tasks if `resolver` reports that this process is a parameter server or, without
    /// [`parameter_servers_only`](Self::parameter_servers_only), a worker. Returns the role of this process.
    ///
    /// A process that serves blocks until the chief stops it, or until no client has been connected for the length of
    /// the [lease](Self::lease). A parameter server that is restarted with the same folder resumes with its previous
    /// state. Clients wait for it in the meantime.
    ///
    /// # Errors
    ///
    /// - [`Error::Cluster`]: the cluster cannot be resolved, or this process is not part of it.
    /// - [`Error::Failed`] of the kind [`Configuration`](ErrorKind::Configuration): the task cannot listen, its folder
    ///   cannot be read, or connections would not be protected; or servers are replicated, but there is only one.
    /// - [`Error::InvalidArgument`]: this process serves as a worker, and two remote functions have the same name.
    pub fn run(self, resolver: &dyn ClusterResolver) -> Result<Role> {
        // SRV-2: no other task serves.
        let Some((cluster, task)) = resolver.membership()? else { return Ok(Role::of_client(None)) };
        let serves = match task.job {
            Job::Ps => true,
            Job::Worker => !self.only_parameter_servers,
            _ => false,
        };
        if !serves {
            return Ok(Role::of_client(Some(task)));
        }
        if !self.only_parameter_servers && !cluster.has_job(&Job::Chief) {
            info_or_stderr(|| {
                tracing::info!(
                    "{task}: the cluster has no chief, so a process outside it has to train, and to stop this server"
                )
            });
        }
        let lease = self.lease.unwrap_or(LEASE);
        let mut server = Server::builder(cluster.clone()).task(task.clone()).lease(lease);
        if task.job == Job::Ps {
            let mut tables = self.tables(&task)?;
            if self.has_replicas() {
                let clients = ClientBuilder::new(cluster.clone(), task.clone());
                let clients = clients.credentials(self.credentials.clone());
                let by = follower(&cluster, &task)?;
                tables = tables.followed_by(clients.clone(), by, task.index).map_err(failed(&task))?;
                let of = followed(&cluster, &task)?;
                server = server.service(REPLICAS, tables.replicas(clients, of).map_err(failed(&task))?);
            }
            server = server.service(SERVICE, tables);
        } else {
            let settings = self.strategy.unwrap_or_default().credentials(self.credentials.clone());
            let settings =
                settings.cluster_resolver(SimpleClusterResolver::new(cluster).with_task(task.clone()));
            let program = Arc::new(RemoteProgram::of_task(settings)?);
            server = server.service(distribute_coordinator::SERVICE, Worker::new(program));
        }
        let server = server.credentials(self.credentials).start().map_err(failed(&task))?;
        info_or_stderr(|| tracing::info!("{task} serves at {}", server.target()));
        let end = server.join().map_err(failed(&task))?;
        if let ShutdownReason::Left(lease) = end {
            info_or_stderr(|| tracing::info!("{task} exits: no client was connected for {lease:?}"));
        }
        tracing::debug!(?end, "{task} has ended");
        Ok(Role::Served(task))
    }

    /// Sets the settings in which this worker's strategy differs from the coordinator's, for example its devices. The
    /// coordinator determines the placement, the staleness, the cache of rows, the type in which rows are sent, all
    /// timeouts that are not set here and, if it can be sent, the partitioner. The cluster and the credentials always
    /// are those of this task.
    pub fn strategy(self, settings: ParameterServerStrategyBuilder) -> Self {
        Self { strategy: Some(settings), ..self }
    }

    /// Serves only if this process is a parameter server. Use this if workers run the complete program themselves, as
    /// in between-graph replication.
    pub fn parameter_servers_only(self) -> Self {
        Self { only_parameter_servers: true, ..self }
    }

    /// Sets how long this task waits without a connected client before it exits; 10 minutes by default. A task has no
    /// client if, for example, the coordinator has failed and does not reconnect.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    fn has_replicas(&self) -> bool {
        self.is_replicated || std::env::var_os(REPLICATED).is_some_and(|set| set == "1")
    }

    fn tables(&self, task: &Task) -> Result<ParameterServer> {
        let own = |folder: PathBuf| ServerOptions::new(folder.join(format!("ps-{}", task.index)));
        let folder = || {
            self.folder
                .clone()
                .or_else(|| std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from))
                .map(own)
        };
        match self.options.clone().or_else(folder) {
            Some(options) => ParameterServer::open(options).map_err(failed(task)),
            None => Ok(ParameterServer::new()),
        }
    }
}

/// Returns the server that replicates a task: the next server, or the first one if the task is the last. Returns an
/// error if there is only one server.
fn follower(cluster: &ClusterSpec, task: &Task) -> Result<Task> {
    let mut all = cluster.task_indices(&Job::Ps)?;
    all.sort_unstable();
    let next = all.iter().find(|index| **index > task.index).or(all.first());
    match next.filter(|index| **index != task.index) {
        Some(next) => Ok(Job::Ps.task(*next)),
        None => {
            let reason =
                "each server needs another one that replicates it, but there is only one; start at least two";
            Err(failed(task)(reason))
        }
    }
}

/// Returns the server that a task replicates: the previous server, or the last one if the task is the first.
fn followed(cluster: &ClusterSpec, task: &Task) -> Result<Task> {
    let mut all = cluster.task_indices(&Job::Ps)?;
    all.sort_unstable();
    let before = all.iter().rev().find(|index| **index < task.index).or(all.last());
    Ok(Job::Ps.task(before.copied().unwrap_or(task.index)))
}

fn failed<E: Display>(task: &Task) -> impl FnOnce(E) -> Error {
    let task = task.clone();
    move |error| Error::failed(ErrorKind::Configuration, "serve", format!("{task} cannot serve: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parameter_servers_and_workers_serve() {
        let cluster = r#"{"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"], "evaluator": ["d:1"]}"#;
        let role = |job: Job| {
            let resolver = SimpleClusterResolver::new(cluster.parse().unwrap()).with_task(job.task(0));
            ServeBuilder::new().parameter_servers_only().run(&resolver).unwrap()
        };
        for job in [Job::Chief, Job::Worker] {
            assert_eq!(role(job.clone()), Role::Trains(Some(job.task(0))));
        }
        assert_eq!(role(Job::Evaluator), Role::Evaluates(Job::Evaluator.task(0)));
        let alone = serve(&SimpleClusterResolver::new(ClusterSpec::default())).unwrap();
        assert_eq!(alone, Role::Trains(None));
        assert!(!alone.has_served() && Role::Served(Job::Ps.task(0)).has_served());
    }

    #[test]
    fn the_next_server_follows_and_of_the_last_the_first() {
        let cluster = |count: usize| ClusterSpec::from_lists([("ps", vec!["127.0.0.1:1"; count])]).unwrap();
        let of = |count, index| follower(&cluster(count), &Job::Ps.task(index));
        assert_eq!([of(3, 0), of(3, 1), of(3, 2)].map(|task| task.unwrap().index), [1, 2, 0]);
        let before = |index| followed(&cluster(3), &Job::Ps.task(index)).unwrap().index;
        assert_eq!([0, 1, 2].map(before), [2, 0, 1]);
        let error = of(1, 0).unwrap_err().to_string();
        assert!(error.contains("start at least two"), "{error}");
    }
}
