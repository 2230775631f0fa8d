//! The service that a parameter server has.

use crate::codec::{self, Malformed};
use crate::log::open_disk;
use crate::outgoing::Outgoing;
use crate::replica::Replicated;
use crate::store::Store;
use crate::{OpenError, Replicas, ServerOptions, SnapshotError};
use distribute_cluster::{Job, Task};
use distribute_params::{Refusal, RefusalKind, Request, Tables};
use distribute_server::{Call, ClientBuilder, Reply, Service};
use std::sync::Arc;

/// What answers requests about the tables of this process: a [`Service`] for a [`Server`](distribute_server::Server).
///
/// Each connection has a thread of the server, on which its requests are carried out one after another; those of several
/// connections go on at once, also on one table. A clone is the same service: so a server can be ended and another one started
/// with the same tables.
///
/// ```
/// use distribute_cluster::{ClusterSpec, Job};
/// use distribute_params::{Channel, Request, Response, TableSpec};
/// use distribute_ps::{Connection, ParameterServer, SERVICE};
/// use distribute_server::{ClientBuilder, Server};
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
    /// A server without tables, which are gone when the process ends.
    pub fn new() -> Self {
        Self::of(Store::in_memory())
    }

    pub(crate) fn of(store: Store) -> Self {
        Self { store: Arc::new(Replicated::new(store)), outgoing: Arc::default() }
    }

    /// A server that loses nothing: it is what it was at the last change that was acknowledged, or new where the folder is.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: ServerOptions) -> Result<Self, OpenError> {
        Store::open(options, Arc::new(open_disk)).map(Self::of)
    }

    /// Sets the number of bytes that the tables may take: see [`ServerOptions::memory`].
    pub fn memory(self, bytes: usize) -> Self {
        self.tables().set_memory(bytes);
        self
    }

    /// Has another server follow this one: what is acknowledged from now on is there, too, and one that comes back without its folder goes on
    /// with that. `clients` reach the cluster's servers, `by` is the one that follows, with the service [`REPLICAS`](crate::REPLICAS), and
    /// `number` that of this server.
    ///
    /// Calls wait until the follower has been reached, up to a minute, and are refused then, with a refusal of kind `Busy`; so do changes
    /// while it is away.
    ///
    /// # Errors
    /// [`OpenError::Thread`].
    pub fn followed_by(self, clients: ClientBuilder, by: Task, number: usize) -> Result<Self, OpenError> {
        self.store.follow((clients, by, number as u64)).map_err(|source| OpenError::Thread { source })?;
        Ok(self)
    }

    /// Returns the service with which this server follows server `of`, which is asked for its copy now. `clients` reach the cluster's
    /// servers, and the number of the one that is followed is its index. The service is [`REPLICAS`](crate::REPLICAS).
    ///
    /// # Errors
    /// [`OpenError::Thread`].
    pub fn replicas(&self, clients: ClientBuilder, of: Task) -> Result<Replicas, OpenError> {
        self.store.replicas(clients, of).map_err(|source| OpenError::Thread { source })
    }

    /// Saves all tables now, as it does from time to time by itself. Changes of a table wait while it is copied.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn snapshot(&self) -> Result<(), SnapshotError> {
        self.store.core().snapshot()
    }

    /// Its tables. What is changed in them directly is not in the log.
    pub fn tables(&self) -> &Tables {
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
            let text = format!("what {caller} sent is no request: {error}; are both of the same build?");
            Refusal::new(RefusalKind::Malformed, text)
        };
        let read = codec::Call::decode(message).map_err(unreadable);
        let read = read.and_then(|call| may(&caller, &call).map(|()| call));
        let (answers, batch, half) =
            match read.and_then(|call| self.outgoing.room(&caller, || reply.settle()).map(|()| call)) {
                Ok(call) => (self.store.core().answer(&call), call.batch, call.half),
                Err(refusal) => (vec![Err(refusal)], false, false),
            };
        match codec::encode_answer(answers, batch, half, |len| reply.memory(len)) {
            Ok(message) => reply.answer(message.head, self.outgoing.count(caller, message.body)),
            Err(error) => reply.fail(format!("the answer cannot be sent: {error}")),
        }
    }
}

/// Whether a task may ask for what is in a call.
///
/// # Errors
/// [`RefusalKind::NotAllowed`]: a job begins, and the chief has not asked for it.
// INV-81
fn may(caller: &Task, call: &codec::Call) -> Result<(), Refusal> {
    let begins = |sent: &codec::Sent| matches!(sent.request, Request::BeginJob { .. });
    if *caller == Job::Chief.task(0) || !call.requests.iter().any(begins) {
        return Ok(());
    }
    let text = format!("begin_job: {caller} may not begin a job: the coordinator does, which is chief 0");
    Err(Refusal::new(RefusalKind::NotAllowed, text))
}
