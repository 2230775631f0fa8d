//! What a server is set up by.

use crate::client::ClientBuilder;
use crate::connection::Services;
use crate::control::{self, Control};
use crate::doctor;
use crate::ending::Ending;
use crate::error::ServerError;
use crate::frame::LONGEST_NAME;
use crate::own_task::{own_task, with_port};
use crate::room::{Room, SHARE};
use crate::server::{Ready, Server};
use crate::service::Service;
use distribute_cluster::resolver::ClusterResolver;
use distribute_cluster::{Address, ClusterSpec, Job, Task, deadline};
use distribute_files::memory;
use distribute_net::{Acceptor, Credentials, Settings};
use std::sync::Arc;
use std::time::Duration;

impl Server {
    /// Starts a server without services of the program. Where the cluster has one job, or the job one task, it need not be
    /// said which. [`builder`](Self::builder) has more to choose.
    ///
    /// # Errors
    /// [`ServerError`].
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

    /// Starts a server of a cluster of its own on this machine, at a port that the system chooses.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn create_local_server() -> Result<Self, ServerError> {
        Self::new(ClusterSpec::from_lists([("local", ["127.0.0.1:0"])])?, None, None)
    }

    /// What a server of this cluster is set up by.
    pub fn builder(cluster: ClusterSpec) -> ServerBuilder {
        ServerBuilder::new(cluster)
    }

    /// What the server of this process is set up by: a worker or a parameter server, as the resolver says.
    ///
    /// # Errors
    /// [`ServerError::Cluster`], and [`ServerError::NotServing`] for another task, or where there is no cluster.
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

    /// The job that this server is part of. It may be left out where the cluster has one.
    pub fn job_name(mut self, job: impl Into<Job>) -> Self {
        self.job = Some(job.into());
        self
    }

    /// Its number in the job. It may be left out where the job has one task.
    pub fn task_index(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }

    /// Both at once.
    pub fn task(self, task: Task) -> Self {
        self.job_name(task.job).task_index(task.index)
    }

    /// What stands in front of the address in [`Server::target`]; `tcp` by default. Nothing else depends on it.
    pub fn protocol(mut self, protocol: impl Into<String>) -> Self {
        self.protocol = protocol.into();
        self
    }

    /// Adds a service that answers the calls of this name.
    pub fn service(mut self, name: impl Into<String>, service: impl Service + 'static) -> Self {
        self.services.push((name.into(), Arc::new(service)));
        self
    }

    /// How the tasks of the job know each other, and protect connections, in place of what was said before. By default by the secret in
    /// `DISTRIBUTE_SECRET`, if there is one.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Where to listen, if that is not this task's address in the cluster: `0.0.0.0:2222` in a container.
    pub fn listen(mut self, address: Address) -> Self {
        self.listen = Some(address);
        self
    }

    /// How connections behave, and how long the heads and bodies of calls may be.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// How many connections there may be at once; 1024 by default. Each has two threads, which sleep while nothing comes.
    ///
    /// Some are left for others, whoever has come before: a task gets no more of them than are left, so at most about half, and all tasks at
    /// one address three times as many.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How many calls of a connection may have no answer yet; 1024 by default. A caller with more is disconnected. Clients have
    /// at most their [`window`](crate::ClientBuilder::window).
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.calls = calls;
        self
    }

    /// Sets the most bytes that the calls of all connections may take while they have no answer; half of the memory by default. A call for which there is
    /// no room fails with [`FaultKind::NoRoom`](crate::FaultKind::NoRoom), and is not carried out. No connection gets more than it leaves
    /// for others.
    pub fn max_waiting_bytes(mut self, bytes: usize) -> Self {
        self.waiting = Some(bytes);
        self
    }

    /// Ends the server when no task of another job has been connected for so long, since it was started or since the last one left:
    /// those that it serves have ended, or are lost. By default it waits for ever.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// A server that listens, and answers once it is [started](Server::start).
    ///
    /// # Errors
    /// [`ServerError`].
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
        let (cluster, ending) = (Arc::new(cluster), Ending::new(acceptor.alarm()));

        let mut services = Services::new();
        let control = Control { cluster: cluster.clone(), ending: Arc::downgrade(&ending) };
        services.insert(control::NAME.into(), Arc::new(control));
        let clients = ClientBuilder::new((*cluster).clone(), task.clone()).credentials(self.credentials);
        services.insert(doctor::NAME.into(), Arc::new(doctor::Examiner::new(clients)));
        for (name, service) in self.services {
            let refused = |why| ServerError::Service { task: task.clone(), name: name.clone(), why };
            if name.is_empty() || name.len() > LONGEST_NAME {
                return Err(refused("a name has 1 to 255 bytes"));
            }
            if services.insert(name.as_str().into(), service).is_some() {
                return Err(refused("there is one of this name already"));
            }
        }
        let (connections, calls, lease) = (self.connections, self.calls, self.lease);
        let half = || memory().map_or(usize::MAX, |bytes| bytes / SHARE);
        let room = Room::new(self.waiting.unwrap_or_else(half));
        let ready = Ready { acceptor, services, connections, calls, room, lease };
        Ok(Server::ready(task, cluster, address, self.protocol, ending, ready))
    }

    /// A server that answers.
    ///
    /// # Errors
    /// [`ServerError`].
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
