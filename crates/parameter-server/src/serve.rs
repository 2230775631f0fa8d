//! Tasks that serve others: parameter servers, and workers that wait for a coordinator.

use crate::remote::RemoteProgram;
use crate::strategy::builder::ParameterServerBuilder;
use distribute_base::{Error, Result};
use distribute_cluster::resolver::{ClusterResolver, SimpleClusterResolver};
use distribute_cluster::{ClusterSpec, Job, Task};
use distribute_coordinator::Worker;
use distribute_log::told;
use distribute_net::Credentials;
use distribute_ps_server::{ParameterServer, REPLICAS, SERVICE, ServerOptions};
use distribute_rpc::{ClientBuilder, End, Server};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The default time that a task waits for a client.
const LEASE: Duration = Duration::from_secs(600);

/// The environment variable with the folder of all servers of a machine.
const FOLDER: &str = "DISTRIBUTE_PS_FOLDER";

/// The environment variable that turns on replication of servers.
const REPLICATED: &str = "DISTRIBUTE_PS_REPLICAS";

/// Serves others, if this process is a parameter server or a worker, until the chief
/// [ends](crate::ParameterServerStrategy::end_servers) it. Returns whether this process has served; if so, the
/// program should exit.
///
/// Use [`Serve`] to change settings.
///
/// ```no_run
/// use distribute::prelude::*;
/// use distribute::{ParameterServerStrategy, TfConfigClusterResolver, params::MinSizePartitioner};
///
/// # fn main() -> distribute::Result<()> {
/// let cluster = TfConfigClusterResolver::from_env()?;
/// if distribute::serve(&cluster)? {
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
/// Returns the errors of [`Serve::run`].
pub fn serve(resolver: &dyn ClusterResolver) -> Result<bool> {
    Serve::new().run(resolver)
}

/// The settings of a task that serves others.
#[derive(Clone, Debug, Default)]
pub struct Serve {
    folder: Option<PathBuf>,
    options: Option<ServerOptions>,
    credentials: Credentials,
    replicas: Option<bool>,
    strategy: Option<ParameterServerBuilder>,
    lease: Option<Duration>,
    workers_go_on: bool,
}

impl Serve {
    /// Creates default settings. A parameter server keeps its tables in the folder that the environment
    /// variable `DISTRIBUTE_PS_FOLDER` names; if it is not set, only in memory. Clients authenticate with the
    /// secret in `DISTRIBUTE_SECRET`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the folder in which parameter servers store their tables. Each one uses a folder of its own inside
    /// it: `ps-0`, `ps-1`, …
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..self }
    }

    /// Sets the options of this parameter server, which include its folder. They take precedence over
    /// [`folder`](Self::folder).
    pub fn options(self, options: ServerOptions) -> Self {
        Self { options: Some(options), ..self }
    }

    /// Replicates each parameter server to the next one, and the last to the first. Each acknowledged change is
    /// then on two servers, in memory in addition to the folder. A server whose folder or machine is gone
    /// resumes from its replica. By default this is on if the environment variable `DISTRIBUTE_PS_REPLICAS` is
    /// `1`. All servers of a cluster need the same setting.
    ///
    /// Each change is sent over the network a second time before it is acknowledged, and tables take twice the
    /// memory. While a server is unavailable, the server that it replicates accepts no changes.
    pub fn replicas(self, replicas: bool) -> Self {
        Self { replicas: Some(replicas), ..self }
    }

    /// Sets how the tasks of the job authenticate each other and protect connections between machines. This
    /// replaces earlier settings, including [`job`](Self::job), and applies to all connections of a task. By
    /// default the secret in `DISTRIBUTE_SECRET` is used, if there is one.
    pub fn credentials(self, credentials: impl Into<Credentials>) -> Self {
        Self { credentials: credentials.into(), ..self }
    }

    /// Sets the name of the job; by default the value of `DISTRIBUTE_JOB` or, without it, the name of the
    /// program's file. See [`Credentials::job`].
    pub fn job(self, name: impl Into<String>) -> Self {
        Self { credentials: self.credentials.job(name), ..self }
    }

    /// Serves others, if `resolver` reports that this process is a parameter server or a worker, until the
    /// chief ends it. Returns whether it has served.
    ///
    /// A parameter server that is restarted with the same folder has its state again; callers wait for it.
    ///
    /// # Errors
    /// - [`Error::Cluster`]: the cluster cannot be resolved, or this process is not part of it.
    /// - [`Error::Serving`]: the task cannot listen, its folder cannot be read, or connections would not be
    ///   protected.
    pub fn run(self, resolver: &dyn ClusterResolver) -> Result<bool> {
        // SRV-2: no other task serves.
        let Some((cluster, task)) = resolver.membership()? else { return Ok(false) };
        if !matches!(task.job, Job::Ps | Job::Worker) || (task.job == Job::Worker && self.workers_go_on) {
            return Ok(false);
        }
        if !self.workers_go_on && !cluster.has_job(&Job::Chief) {
            told(|| {
                tracing::info!(
                    "{task}: the cluster has no chief, so one outside of it has to train, and to end this server"
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
        told(|| tracing::info!("{task} serves at {}", server.target()));
        let end = server.join().map_err(failed(&task))?;
        if let End::Left(lease) = end {
            told(|| tracing::info!("{task} ends: nobody has needed it for {lease:?}"));
        }
        tracing::debug!(?end, "{task} has ended");
        Ok(true)
    }

    /// Sets the settings of this worker's strategy that differ from the coordinator's, for example its devices.
    /// The coordinator decides the partitioner, the placement and the staleness; it also decides timeouts that
    /// are not set here.
    pub fn strategy(self, settings: ParameterServerBuilder) -> Self {
        Self { strategy: Some(settings), ..self }
    }

    /// Serves only if this process is a parameter server. Workers run the whole program themselves, as with
    /// between-graph replication.
    pub fn parameter_servers_alone(self) -> Self {
        Self { workers_go_on: true, ..self }
    }

    /// Sets how long this task waits without a connected client before it exits, as when the coordinator has
    /// failed and does not come back; 10 minutes by default.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    fn has_replicas(&self) -> bool {
        self.replicas.unwrap_or_else(|| std::env::var_os(REPLICATED).is_some_and(|set| set == "1"))
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

/// Returns the server that replicates a task: the next one, or the first one after the last.
fn follower(cluster: &ClusterSpec, task: &Task) -> Result<Task> {
    let mut all = cluster.task_indices(&Job::Ps)?;
    all.sort_unstable();
    let next = all.iter().find(|index| **index > task.index).or(all.first());
    match next.filter(|index| **index != task.index) {
        Some(next) => Ok(Job::Ps.task(*next)),
        None => {
            let reason = "each server is to be followed by another one (replicas), and there is no other; start two at least";
            Err(Error::Serving { task: task.clone(), reason: reason.to_owned() })
        }
    }
}

/// Returns the server that a task replicates: the previous one, or the last one before the first.
fn followed(cluster: &ClusterSpec, task: &Task) -> Result<Task> {
    let mut all = cluster.task_indices(&Job::Ps)?;
    all.sort_unstable();
    let before = all.iter().rev().find(|index| **index < task.index).or(all.last());
    Ok(Job::Ps.task(before.copied().unwrap_or(task.index)))
}

fn failed<E: Display>(task: &Task) -> impl FnOnce(E) -> Error {
    let task = task.clone();
    move |error| Error::Serving { task, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_server_follows_and_of_the_last_the_first() {
        let cluster = |count: usize| ClusterSpec::from_lists([("ps", vec!["127.0.0.1:1"; count])]).unwrap();
        let of = |count, index| follower(&cluster(count), &Job::Ps.task(index));
        assert_eq!([of(3, 0), of(3, 1), of(3, 2)].map(|task| task.unwrap().index), [1, 2, 0]);
        let before = |index| followed(&cluster(3), &Job::Ps.task(index)).unwrap().index;
        assert_eq!([0, 1, 2].map(before), [2, 0, 1]);
        let error = of(1, 0).unwrap_err().to_string();
        assert!(error.contains("start two at least"), "{error}");
    }
}
