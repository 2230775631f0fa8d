//! [`ParameterServer`]: the service that executes requests about tables.

use crate::codec::{self, Malformed};
use crate::log::open_disk;
use crate::outgoing::Outgoing;
use crate::replica::Replicated;
use crate::store::Store;
use crate::{OpenError, Replicas, ServerOptions, SnapshotError};
use distribute_cluster::{Job, Task};
use distribute_ps_tables::{Refusal, RefusalKind, Request, Tables};
use distribute_rpc::{Call, ClientBuilder, Reply, Service};
use std::sync::Arc;

/// A [`Service`] for a [`Server`](distribute_rpc::Server) that executes requests about the tables of this process.
///
/// Each connection has a thread, which executes its requests one after another. Requests of different connections are
/// executed concurrently, even on the same table. Clones share the same tables, so a server can be stopped and another
/// one started with them.
///
/// ```
/// use distribute_cluster::{ClusterSpec, Job};
/// use distribute_ps_tables::{Channel, Request, Response, TableSpec};
/// use distribute_ps_server::{Connection, ParameterServer, SERVICE};
/// use distribute_rpc::{ClientBuilder, Server};
/// use distribute_tensor::HostTensor;
/// use std::time::Duration;
///
/// let cluster = ClusterSpec::from_lists([("chief", ["127.0.0.1:0"]), ("ps", ["127.0.0.1:0"])])?;
/// let server = Server::builder(cluster).job_name("ps").service(SERVICE, ParameterServer::new()).start()?;
///
/// let clients = ClientBuilder::new(server.cluster().clone(), Job::Chief.task(0));
/// let ps = Connection::new(clients, Job::Ps.task(0));
/// let minute = Duration::from_secs(60);
/// ps.call(Request::Create(TableSpec::values("bias", HostTensor::vector(vec![1f32, 2.]))), minute)?;
/// let rows = ps.call(Request::ReadRows { table: "bias".into(), rows: vec![1, 1] }, minute)?;
/// assert_eq!(rows, Response::Rows(HostTensor::vector(vec![2f32, 2.])));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParameterServer {
    store: Arc<Replicated>,
    outgoing: Arc<Outgoing>,
}

impl ParameterServer {
    /// Creates a server without tables, which keeps tables only in memory.
    pub fn new() -> Self {
        Self::of(Store::in_memory())
    }

    pub(crate) fn of(store: Store) -> Self {
        Self { store: Arc::new(Replicated::new(store)), outgoing: Arc::default() }
    }

    /// Creates a server with a folder. It resumes with the state in the folder, or starts without tables if the folder
    /// is new. The state includes all acknowledged changes, except those that a power failure has lost: see
    /// [`Durability`](crate::Durability).
    ///
    /// # Errors
    /// Returns an [`OpenError`] if the server cannot resume.
    pub fn open(options: ServerOptions) -> Result<Self, OpenError> {
        Store::open(options, Arc::new(open_disk)).map(Self::of)
    }

    /// Sets the maximum size of the tables in bytes: see [`ServerOptions::memory`].
    pub fn memory(self, bytes: usize) -> Self {
        self.tables().set_memory(bytes);
        self
    }

    /// Replicates this server to a follower, unless it already has one. Later acknowledged changes are also on the
    /// follower, and a server that restarts without its folder resumes from the follower's copy.
    ///
    /// `clients` connects to the servers of the cluster. `by` is the task of the follower, whose server must have the
    /// service [`REPLICAS`](crate::REPLICAS). `number` is the index of this server.
    ///
    /// Calls wait up to a minute until the follower was reached once, and are then rejected with [`RefusalKind::Busy`].
    /// If the follower becomes unavailable later, changes wait for the same time. They are then rejected, although this
    /// server has applied them.
    ///
    /// # Errors
    /// - [`OpenError::Thread`]: a thread cannot be started.
    pub fn followed_by(self, clients: ClientBuilder, by: Task, number: usize) -> Result<Self, OpenError> {
        self.store.follow((clients, by, number as u64)).map_err(|source| OpenError::Thread { source })?;
        Ok(self)
    }

    /// Returns the service with which this server keeps copies of other servers. It must be added under the name
    /// [`REPLICAS`](crate::REPLICAS). The first call also begins to request the copy of server `of`. `clients` connects
    /// to the servers of the cluster.
    ///
    /// # Errors
    /// - [`OpenError::Thread`]: a thread cannot be started.
    pub fn replicas(&self, clients: ClientBuilder, of: Task) -> Result<Replicas, OpenError> {
        self.store.replicas(clients, of).map_err(|source| OpenError::Thread { source })
    }

    /// Saves all tables to the server's folder now, in addition to the automatic snapshots. Changes to a table wait
    /// only while it is copied.
    ///
    /// # Errors
    /// - [`SnapshotError::InMemory`]: the server has no folder.
    /// - Another [`SnapshotError`]: the tables cannot be saved.
    pub fn snapshot(&self) -> Result<(), SnapshotError> {
        self.store.core().snapshot()
    }

    /// Returns the tables of this server. Changes made directly to them are not logged.
    pub fn tables(&self) -> &Arc<Tables> {
        self.store.core().tables()
    }
}

impl Default for ParameterServer {
    fn default() -> Self {
        Self::new()
    }
}

impl Service for ParameterServer {
    fn call(&self, call: Call, reply: Reply) {
        let Call { caller, message } = call;
        let unreadable = |error: Malformed| {
            let text = format!(
                "{caller} sent something other than a request: {error}; are both of the \
                 same build?"
            );
            Refusal::new(RefusalKind::Malformed, text)
        };
        let read = codec::Call::decode(message).map_err(unreadable);
        let read = read.and_then(|call| may(&caller, &call).map(|()| call));
        let (answers, batch, wires) = match read
            .and_then(|call| self.outgoing.wait_for_room(&caller, || reply.reclaim()).map(|()| call))
        {
            Ok(call) => {
                let answers = self.store.core().answer(&call);
                let wires = call.wires(&answers);
                (answers, call.batch, wires)
            }
            Err(refusal) => (vec![Err(refusal)], false, Vec::new()),
        };
        match codec::encode_answer(answers, batch, &wires, |len| reply.memory(len)) {
            Ok(message) => reply.answer(message.head, self.outgoing.count(caller, message.body)),
            Err(error) => reply.fail(format!("the answer cannot be sent: {error}")),
        }
    }
}

/// Checks that a task may make a call.
///
/// # Errors
/// - [`RefusalKind::NotAllowed`]: the call begins a job, and its sender is not the chief.
// INV-81
fn may(caller: &Task, call: &codec::Call) -> Result<(), Refusal> {
    let begins = |sent: &codec::EncodedRequest| matches!(sent.request, Request::BeginJob { .. });
    if *caller == Job::Chief.task(0) || !call.requests.iter().any(begins) {
        return Ok(());
    }
    let text = format!("begin_job: {caller} may not begin a job: only the coordinator may, which is chief 0");
    Err(Refusal::new(RefusalKind::NotAllowed, text))
}
