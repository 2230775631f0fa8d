//! Tables that the workers store together, and the service with which each worker offers its shards to the others.

use super::table_options::{HostedWeights, TableHosts, TableOptions};
use bytes::Bytes;
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::{
    Address, ClusterSpec, Fingerprint, Host, Job, Operation, ReplicaStatus, Task, World,
};
use distribute_collective::group::{Group, GroupCall};
use distribute_core::internal::exchange_in_call;
use distribute_log::warn_or_stderr;
use distribute_net::Credentials;
use distribute_ps_client::ParameterServers;
use distribute_ps_client::internal::{Servers, connect};
use distribute_ps_server::{Connection, ParameterServer, SERVICE};
use distribute_ps_tables::{Channel, LocalChannel, TablePolicy};
use distribute_rpc::{ClientBuilder, Server};
use std::fmt::{self, Display};
use std::net::Ipv4Addr;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

const OPERATION: &str = "MultiWorkerMirroredStrategy";

/// The network settings of this worker's service.
#[derive(Debug, Default)]
pub(super) struct ServiceSettings {
    /// The host in this worker's address, by which the others reach it. `None` if all workers are in this process.
    pub host: Option<Host>,
    /// The host to listen on, if it differs from `host`.
    pub listen: Option<Host>,
    pub credentials: Credentials,
}

/// The tables of all workers, and this worker's share of them.
pub(super) struct SharedTables {
    pub servers: Arc<ParameterServers>,
    /// The service through which the other workers access this worker's share. `None` if the tables are on parameter
    /// servers, or if this is the only worker.
    service: Option<Server>,
    timeout: Duration,
}

/// The settings with which this process connects to the parameter servers of a cluster.
#[derive(Clone, Debug)]
pub(super) struct ServerSettings {
    pub cluster: ClusterSpec,
    /// The task of this process.
    pub task: Task,
    pub credentials: Credentials,
    /// The maximum time to wait until the servers answer.
    pub patience: Duration,
}

/// Returns the settings with which a task uses the parameter servers of its cluster.
pub(super) fn server_settings(
    (cluster, task): (ClusterSpec, Task),
    job: &Option<String>,
    credentials: &Credentials,
    join_timeout: Option<Duration>,
) -> ServerSettings {
    let credentials = match job {
        Some(job) => credentials.clone().job(job.clone()),
        None => credentials.clone(),
    };
    ServerSettings { cluster, task, credentials, patience: join_timeout.unwrap_or(DEFAULT_TIMEOUT) }
}

impl SharedTables {
    /// Starts this worker's service, and connects to the services of the other workers. All workers must make this
    /// call.
    ///
    /// # Errors
    /// - [`Error::Worker`]: this or another worker cannot listen.
    /// - [`Error::Collective`]: a worker does not make this call.
    /// - [`Error::Server`]: the service of another worker cannot be reached.
    pub fn on_workers(
        group: &Group,
        options: &TableOptions,
        settings: ServiceSettings,
        timeout: Duration,
    ) -> Result<Self> {
        let world = group.world();
        let own = ParameterServer::new();
        let service = serve(world, &own, &settings);
        let (service, addresses) = exchange_addresses(group, service, timeout)?;
        let cluster = ClusterSpec::from_lists([(Job::Ps, addresses)])?;
        let clients =
            ClientBuilder::new(cluster, Job::Worker.task(world.worker())).credentials(settings.credentials);
        let channel = |worker: usize| -> Arc<dyn Channel> {
            if worker == world.worker() {
                return Arc::new(LocalChannel::new(worker, own.tables().clone()));
            }
            // The rows of a lost worker are lost, so no worker waits for its return.
            let connection = Connection::builder(clients.clone()).without_reconnection();
            Arc::new(connection.name(format!("worker {worker}")).open(Job::Ps.task(worker)))
        };
        let channels = (0..world.workers()).map(channel).collect();
        let servers = client(channels, options, (timeout, timeout), world)?;
        // Connects to all of them now, while they are known to be there.
        servers.usage()?;
        Ok(Self { servers, service: Some(service), timeout })
    }

    /// Creates the tables of a strategy with a single worker, in the memory of this process.
    pub fn of_one(options: &TableOptions, world: World, timeout: Duration) -> Result<Self> {
        let channel: Arc<dyn Channel> = Arc::new(LocalChannel::new(0, Arc::default()));
        let servers = client(vec![channel], options, (timeout, timeout), world)?;
        Ok(Self { servers, service: None, timeout })
    }

    /// Connects to the parameter servers of a cluster. All workers must make this call; `group` is `None` if there is
    /// only one.
    ///
    /// # Errors
    /// - [`Error::Failed`]: servers cannot be reached.
    /// - [`Error::InvalidArgument`]: the cluster has no server, or servers have tables of a different training run.
    /// - [`Error::Worker`]: only some of the workers have one of these errors.
    /// - [`Error::Collective`]: a worker does not make this call.
    pub fn on_servers(
        group: Option<&Group>,
        options: &TableOptions,
        settings: ServerSettings,
        timeout: Duration,
    ) -> Result<Self> {
        let ServerSettings { cluster, task, credentials, patience } = settings;
        let world = group.map_or_else(World::default, Group::world);
        let clients = ClientBuilder::new(cluster.clone(), task).credentials(credentials);
        let connected = addresses(&cluster)
            .and_then(|servers| {
                connect(&servers, &Connection::builder(clients.clone()), patience, world.is_chief())
            })
            .and_then(|channels| client(channels, options, (timeout, patience), world));
        let connected = connected.inspect(|servers| warn_used(servers, world));
        let servers = match group {
            Some(group) => {
                let agree = |calling: GroupCall<'_>| {
                    exchange_in_call(OPERATION, calling, connected, |_| Bytes::new())
                };
                with_call(group, timeout, agree)?.0
            }
            None => connected?,
        };
        let tasks = cluster.task_indices(&Job::Ps)?.into_iter().map(|index| Job::Ps.task(index));
        servers.set_tasks(Servers::new(clients, tasks.collect()));
        Ok(Self { servers, service: None, timeout })
    }
}

/// Creates the client of the servers to which the given channels lead.
fn client(
    channels: Vec<Arc<dyn Channel>>,
    options: &TableOptions,
    timeouts: (Duration, Duration),
    world: World,
) -> Result<Arc<ParameterServers>> {
    let &TableOptions { min_bytes, partition, weights, row_cache, .. } = options;
    let policy = TablePolicy { min_bytes, partition, all_weights: weights == HostedWeights::All };
    let servers = ParameterServers::of_tables(channels, timeouts, policy, world)?;
    Ok(Arc::new(servers.with_row_cache(row_cache).with_hot_rows(options.hot_rows.clone())))
}

/// Returns the addresses of the cluster's parameter servers. If there are none, or a gap between their indices, returns
/// an error.
fn addresses(cluster: &ClusterSpec) -> Result<Vec<Address>> {
    let servers = cluster.job_tasks(&Job::Ps).unwrap_or_default();
    let all: Option<Vec<Address>> = servers.into_iter().map(|address| address.cloned()).collect();
    all.filter(|all| !all.is_empty()).ok_or_else(|| {
        let reason = "tables are to be stored on servers, but the cluster has no task of the job ps, or a gap between \
                      their numbers; add servers to the cluster, or use TableHosts::Workers";
        Error::invalid(OPERATION, reason)
    })
}

/// Logs a warning on the chief if the servers have rows of an earlier run.
fn warn_used(servers: &ParameterServers, world: World) {
    let is_used = || servers.usage().is_ok_and(|usage| usage.iter().any(|server| server.rows > 0));
    if world.is_chief() && is_used() {
        warn_or_stderr(|| {
            tracing::warn!(
                "the servers have tables of an earlier run, with which this one continues; restore the checkpoint that \
                 belongs to them, or empty the folders of all servers and start them again"
            );
        });
    }
}

/// Waits until the other workers have closed their connections, because they may still be reading rows that are stored
/// here. Logs a warning if some connections are still open after the timeout.
impl Drop for SharedTables {
    fn drop(&mut self) {
        let Some(service) = &self.service else { return };
        // Variables may still hold the channels, and every worker waits for the others here.
        self.servers.disconnect();
        if !service.wait_for_disconnection(self.timeout) {
            warn_or_stderr(|| {
                tracing::warn!(
                    "{} connections of other workers still read tables that are stored here at {}, after {:?}; drop the \
                     strategy on all workers at the end of the program",
                    service.connections(),
                    service.address(),
                    self.timeout
                );
            });
        }
    }
}

impl fmt::Debug for SharedTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedTables").field(&self.servers).finish()
    }
}

/// Starts the service for this worker's shares, at a port that the system chooses.
fn serve(world: World, tables: &ParameterServer, settings: &ServiceSettings) -> Result<Server> {
    let here = || Host::Ip(Ipv4Addr::LOCALHOST.into());
    let of = |host: &Option<Host>| Address::new(host.clone().unwrap_or_else(here), 0);
    let unknown = Address::new(here(), 0);
    let addresses = (0..world.workers()).map(|worker| {
        let address = if worker == world.worker() { of(&settings.host) } else { unknown.clone() };
        address.to_string()
    });
    let cluster = ClusterSpec::from_lists([(Job::Ps, addresses.collect::<Vec<_>>())])?;
    let server = Server::builder(cluster)
        .task(Job::Ps.task(world.worker()))
        .service(SERVICE, tables.clone())
        .credentials(settings.credentials.clone());
    let server = match &settings.listen {
        Some(host) => server.listen(Address::new(host.clone(), 0)),
        None => server,
    };
    server.start().map_err(|error| cannot_serve(&error))
}

/// Sends the address of this worker's service to the other workers. Returns the service, and the addresses of all.
fn exchange_addresses(
    group: &Group,
    service: Result<Server>,
    timeout: Duration,
) -> Result<(Server, Vec<String>)> {
    let address = |service: &Server| Bytes::from(service.address().to_string());
    let (service, all) =
        with_call(group, timeout, |calling| exchange_in_call(OPERATION, calling, service, address))?;
    Ok((service, all.iter().map(|address| String::from_utf8_lossy(address).into_owned()).collect()))
}

/// Calls `make` with a call in which all workers participate, before they have a strategy.
fn with_call<R>(
    group: &Group,
    timeout: Duration,
    make: impl FnOnce(GroupCall<'_>) -> Result<R>,
) -> Result<R> {
    let session = group.open("tables", 0);
    let call = Fingerprint::new(Operation::CreateVariable, "the tables of all workers", Location::caller());
    let replicas = group.world().local_replicas();
    let statuses = replicas.map(|replica| ReplicaStatus::waiting(replica, call.clone()));
    make(GroupCall::new(&session, statuses.collect(), timeout))
}

fn cannot_serve(reason: &dyn Display) -> Error {
    let reason = format!("tables cannot be offered to the other workers: {reason}");
    Error::failed(ErrorKind::Configuration, OPERATION, reason)
}

/// Prepares the tables that are not mirrored: on the workers of `group`, on parameter servers, or in this process if it
/// is the only worker. Returns `None` if all tables are mirrored.
///
/// # Errors
/// - [`Error::InvalidArgument`]: tables are to be stored on servers without a cluster.
/// - The errors of [`SharedTables::on_workers`] and [`SharedTables::on_servers`].
pub(super) fn shared_tables(
    group: Option<&Group>,
    options: &TableOptions,
    (service, servers): (ServiceSettings, Option<ServerSettings>),
    timeout: Option<Duration>,
) -> Result<Option<SharedTables>> {
    let (timeout, group) =
        (timeout.unwrap_or(DEFAULT_TIMEOUT), group.filter(|group| group.world().is_multi_worker()));
    match (options.hosts, group, servers) {
        (TableHosts::Workers, Some(group), _) => {
            SharedTables::on_workers(group, options, service, timeout).map(Some)
        }
        (TableHosts::Servers, group, Some(servers)) => {
            SharedTables::on_servers(group, options, servers, timeout).map(Some)
        }
        (TableHosts::Servers, _, None) => {
            let reason = "tables are to be stored on servers, but there is no cluster: pass a cluster_resolver, or \
                          use TableHosts::Workers";
            Err(Error::invalid(OPERATION, reason))
        }
        (TableHosts::Workers, None, _) => SharedTables::of_one(options, World::default(), timeout).map(Some),
        (TableHosts::Mirrored, ..) => Ok(None),
    }
}
