//! [`ServerBuilder`]: the settings of a server.

use crate::client::ClientBuilder;
use crate::connection::Services;
use crate::control::{self, Control};
use crate::doctor;
use crate::error::ServerError;
use crate::frame::LONGEST_NAME;
use crate::memory_budget::{MEMORY_DIVISOR, MemoryBudget};
use crate::own_task::{own_task, with_port};
use crate::server::{Ready, Server};
use crate::service::Service;
use crate::shutdown::Shutdown;
use distribute_cluster::resolver::ClusterResolver;
use distribute_cluster::{Address, ClusterSpec, Job, Task, deadline};
use distribute_files::memory;
use distribute_net::{Acceptor, Credentials, Settings};
use std::sync::Arc;
use std::time::Duration;

impl Server {
    /// Starts a server without custom services. [`builder`](Self::builder) provides more settings.
    ///
    /// The job can be omitted if the cluster has only one job, and the index if the job has only one task.
    ///
    /// # Errors
    /// Returns the errors of [`ServerBuilder::start`], among them:
    /// - [`ServerError::AmbiguousJob`]: the job is omitted, but the cluster does not have exactly one.
    /// - [`ServerError::AmbiguousTask`]: the index is omitted, but the job does not have exactly one task.
    pub fn new(
        cluster: ClusterSpec,
        job_name: Option<Job>,
        task_index: Option<usize>,
    ) -> Result<Self, ServerError> {
        let mut builder = Self::builder(cluster);
        if let Some(job) = job_name {
            builder = builder.job_name(job);
        }
        if let Some(index) = task_index {
            builder = builder.task_index(index);
        }
        builder.start()
    }

    /// Starts a server on this machine, as the only task of a new cluster, on a port that the system chooses.
    ///
    /// # Errors
    /// Returns the errors of [`ServerBuilder::start`].
    pub fn create_local_server() -> Result<Self, ServerError> {
        Self::new(ClusterSpec::from_lists([("local", ["127.0.0.1:0"])])?, None, None)
    }

    /// Returns a builder for a server in the given cluster.
    pub fn builder(cluster: ClusterSpec) -> ServerBuilder {
        ServerBuilder::new(cluster)
    }

    /// Returns a builder for the server of this process, which must be a worker or a parameter server according to the
    /// resolver.
    ///
    /// # Errors
    /// - [`ServerError::Cluster`]: the resolver fails.
    /// - [`ServerError::NotServing`]: the process is neither a worker nor a parameter server, or there is no cluster.
    pub fn of_resolver(resolver: &dyn ClusterResolver) -> Result<ServerBuilder, ServerError> {
        // SRV-2
        match resolver.membership()? {
            Some((cluster, task)) if matches!(task.job, Job::Worker | Job::Ps) => {
                Ok(Self::builder(cluster).task(task))
            }
            other => Err(ServerError::NotServing { task: other.map(|(_, task)| task) }),
        }
    }
}

/// The settings of a [`Server`].
#[must_use = "a builder does nothing until `build` or `start` is called"]
pub struct ServerBuilder {
    cluster: ClusterSpec,
    job: Option<Job>,
    index: Option<usize>,
    protocol: String,
    listen: Option<Address>,
    credentials: Credentials,
    services: Vec<(String, Arc<dyn Service>)>,
    settings: Settings,
    connections: usize,
    calls: usize,
    waiting: Option<usize>,
    lease: Duration,
}

impl ServerBuilder {
    fn new(cluster: ClusterSpec) -> Self {
        Self {
            cluster,
            job: None,
            index: None,
            protocol: "tcp".to_owned(),
            listen: None,
            credentials: Credentials::default(),
            services: Vec::new(),
            settings: Settings::default(),
            connections: 1024,
            calls: 1024,
            waiting: None,
            lease: Duration::MAX,
        }
    }

    /// Sets the job of this server. It can be omitted if the cluster has only one.
    pub fn job_name(mut self, job: impl Into<Job>) -> Self {
        self.job = Some(job.into());
        self
    }

    /// Sets the index of this server in its job. It can be omitted if the job has only one task.
    pub fn task_index(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }

    /// Sets the job of this server and its index in the job.
    pub fn task(self, task: Task) -> Self {
        self.job_name(task.job).task_index(task.index)
    }

    /// Sets the scheme of the address in [`Server::target`]. The scheme has no other effect. The default is `tcp`.
    pub fn protocol(mut self, protocol: impl Into<String>) -> Self {
        self.protocol = protocol.into();
        self
    }

    /// Adds a service that answers the calls to the name `name`.
    pub fn service(mut self, name: impl Into<String>, service: impl Service + 'static) -> Self {
        self.services.push((name.into(), Arc::new(service)));
        self
    }

    /// Sets the credentials of the job's tasks, and the protection of connections. Previous credentials are replaced.
    /// The default is the secret in `DISTRIBUTE_SECRET`, if it is set.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Sets the address at which to listen, if it differs from this task's address in the cluster, for example
    /// `0.0.0.0:2222` in a container.
    pub fn listen(mut self, address: Address) -> Self {
        self.listen = Some(address);
        self
    }

    /// Sets the options of connections, and the maximum lengths of the heads and bodies of calls.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the maximum number of simultaneous connections. The default is 1024. Each connection has two threads, which
    /// sleep while nothing is received.
    ///
    /// Some connections are reserved for other callers. A task gets another connection only while it has fewer
    /// connections than are free, so it gets at most half of the maximum, rounded up. All tasks at one IP address get
    /// another connection only while together they have fewer than three times the number of free ones. They never get
    /// all connections, unless the maximum is 1.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the maximum number of unanswered calls per connection. The default is 1024. A caller that exceeds it is
    /// disconnected. Clients limit themselves to their [`window`](crate::ClientBuilder::window).
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.calls = calls;
        self
    }

    /// Sets the maximum total size in bytes of the unanswered calls of all connections. The default is half of the
    /// memory of this machine or container; if the system does not report it, there is no limit.
    ///
    /// A call that would exceed the maximum is not executed, and fails with
    /// [`FaultKind::NoRoom`](crate::FaultKind::NoRoom). So does a call after which the calls of its connection would
    /// occupy more bytes than would then be free. A connection therefore gets at most half of the size that other
    /// connections do not use. The second limit does not apply to the only unanswered call of a connection.
    pub fn max_waiting_bytes(mut self, bytes: usize) -> Self {
        self.waiting = Some(bytes);
        self
    }

    /// Sets the time after which the server ends if no task of a different job is connected. The server then assumes
    /// that the tasks that it serves have exited or failed. The time begins when the server is started, and again when
    /// the last connection from such a task is closed. By default there is no limit.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Creates a server that listens. It answers calls only after it is [started](Server::start).
    ///
    /// # Errors
    /// - [`ServerError::Cluster`]: the task is not in the cluster.
    /// - [`ServerError::AmbiguousJob`], [`ServerError::AmbiguousTask`]: the job or the index is missing.
    /// - [`ServerError::Access`]: connections would be unprotected, or the secret or certificates cannot be
    ///   used.
    /// - [`ServerError::Listen`]: the server cannot listen at its address, or the name of a job is too long.
    /// - [`ServerError::Service`]: the name of a service is already used, empty or too long.
    pub fn build(self) -> Result<Server, ServerError> {
        let task = own_task(&self.cluster, self.job, self.index)?;
        let address = self.cluster.task_address(&task.job, task.index)?;
        let access = self.credentials.access(self.cluster.tasks().map(|(_, address)| address))?;
        let listen = self.listen.as_ref().unwrap_or(address);
        let acceptor =
            Acceptor::bind(task.clone(), listen, access, deadline::DEFAULT_TIMEOUT)?.settings(self.settings);
        let acceptor = acceptor.job(&self.credentials.job_name())?;
        let cluster = with_port(&self.cluster, &task, acceptor.address().port())?;
        let address = cluster.task_address(&task.job, task.index)?.clone();
        let (cluster, shutdown) = (Arc::new(cluster), Shutdown::new(acceptor.waker()));

        let mut services = Services::new();
        let control = Control { cluster: cluster.clone(), shutdown: Arc::downgrade(&shutdown) };
        services.insert(control::NAME.into(), Arc::new(control));
        let clients = ClientBuilder::new((*cluster).clone(), task.clone()).credentials(self.credentials);
        services.insert(doctor::NAME.into(), Arc::new(doctor::Examiner::new(clients)));
        for (name, service) in self.services {
            let refused = |why| ServerError::Service { task: task.clone(), name: name.clone(), why };
            if name.is_empty() || name.len() > LONGEST_NAME {
                return Err(refused("a name has 1 to 255 bytes"));
            }
            if services.insert(name.as_str().into(), service).is_some() {
                return Err(refused("a service of this name exists already"));
            }
        }
        let (connections, calls, lease) = (self.connections, self.calls, self.lease);
        let half = || memory().map_or(usize::MAX, |bytes| bytes / MEMORY_DIVISOR);
        let budget = MemoryBudget::new(self.waiting.unwrap_or_else(half));
        let ready = Ready { acceptor, services, connections, calls, budget, lease };
        Ok(Server::ready(task, cluster, address, self.protocol, shutdown, ready))
    }

    /// Creates a server and starts to answer calls.
    ///
    /// # Errors
    /// Returns the errors of [`build`](Self::build) and [`Server::start`].
    pub fn start(self) -> Result<Server, ServerError> {
        let mut server = self.build()?;
        server.start()?;
        Ok(server)
    }
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let services: Vec<_> = self.services.iter().map(|(name, _)| name).collect();
        f.debug_struct("ServerBuilder")
            .field("cluster", &self.cluster)
            .field("job", &self.job)
            .field("index", &self.index)
            .field("services", &services)
            .finish_non_exhaustive()
    }
}
