//! The connection to a parameter server in another process.
//!
//! | module | contents |
//! |---|---|
//! | `link` | the network connection, which one thread establishes for all |
//! | `in_flight` | limits on requests in flight |
//! | `waiting` | a request in flight, which is sent again after the connection was lost |
//! | `order` | the order in which requests are sent, even over a new connection |

mod in_flight;
mod link;
mod order;
#[cfg(test)]
mod tests;
mod waiting;

use crate::codec::{Encoded, MAX_REQUESTS};
use distribute_cluster::{Deadline, Task};
use distribute_ps_tables::{Channel, ChannelError, Request, Started};
use distribute_rpc::ClientBuilder;
use distribute_tensor::Wire;
use in_flight::InFlightLimit;
use link::Link;
use order::SendOrder;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waiting::PendingCall;

/// A connection to a parameter server: a [`Channel`] that any number of threads can use.
///
/// A network connection is established for the first request. If it is lost, another one is established by default, and
/// requests without a response are sent again until their deadlines. Changes are numbered, so that the server applies
/// each at most once.
///
/// The number of requests and bytes in flight is limited. Further requests wait until they are within the limits.
pub struct Connection(Arc<Shared>);

/// The state that a connection shares with its requests in flight.
struct Shared {
    name: String,
    /// The random id of this client.
    client: u64,
    link: Link,
    in_flight: InFlightLimit,
    order: SendOrder,
    wire: Wire,
    /// Whether the server has acknowledged a change.
    acknowledged: AtomicBool,
}

impl Connection {
    /// Creates a connection with `clients` to the server of task `to`.
    pub fn new(clients: ClientBuilder, to: Task) -> Self {
        ConnectionBuilder::new(clients).open(to)
    }

    /// Returns a builder, with which settings can be changed.
    pub fn builder(clients: ClientBuilder) -> ConnectionBuilder {
        ConnectionBuilder::new(clients)
    }
}

/// The settings of connections to parameter servers.
#[must_use = "a builder does nothing until `open` is called"]
#[derive(Clone, Debug)]
pub struct ConnectionBuilder {
    clients: ClientBuilder,
    calls: usize,
    bytes: u64,
    wire: Wire,
    reconnects: bool,
    name: Option<String>,
}

impl ConnectionBuilder {
    fn new(clients: ClientBuilder) -> Self {
        let (calls, bytes, wire) = (64, 256 << 20, Wire::Full);
        Self { clients, calls, bytes, wire, reconnects: true, name: None }
    }

    /// Sets the maximum number of requests in flight; 64 by default. 0 is treated as 1.
    pub fn calls(self, calls: usize) -> Self {
        Self { calls: calls.max(1), ..self }
    }

    /// Sets the maximum total size in bytes of the requests in flight; 256 MiB by default. A larger request is sent
    /// alone.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Sets the type in which `float32` gradients are sent, and in which the server sends `float32` rows, and values
    /// that the client only computes with; [`Wire::Full`] by default. The server stores and adds `float32`.
    pub fn wire(self, wire: Wire) -> Self {
        Self { wire, ..self }
    }

    /// Makes requests fail as soon as the connection is lost. Use this if a process that replaces the server would not
    /// have its tables.
    pub fn without_reconnection(self) -> Self {
        Self { reconnects: false, ..self }
    }

    /// Sets the name of the server in errors; by default, the name of its task.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Creates a connection to the server of a task of the cluster.
    pub fn open(self, to: Task) -> Connection {
        let Self { clients, calls, bytes, wire, reconnects, name } = self;
        let name = name.unwrap_or_else(|| to.to_string());
        let link = Link::new(clients.window(calls), to, reconnects);
        let client = RandomState::new().build_hasher().finish();
        let (in_flight, order) = (InFlightLimit::new(calls, bytes), SendOrder::default());
        let acknowledged = AtomicBool::new(false);
        Connection(Arc::new(Shared { name, client, link, in_flight, order, wire, acknowledged }))
    }
}

impl Channel for Connection {
    fn server(&self) -> &str {
        &self.0.name
    }

    fn close(&self) {
        self.0.link.close();
    }

    fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError> {
        let shared = self.0.clone();
        let deadline = Deadline::after(timeout);
        request
            .check()
            .map_err(|error| ChannelError::Refused { server: shared.name.clone(), refusal: error.into() })?;
        let described = request.describe();
        let (requests, changes) = count(&request);
        let too_large = |what, found, limit| ChannelError::TooLarge {
            server: shared.name.clone(),
            request: described.clone(),
            what,
            found,
            limit,
        };
        if requests > MAX_REQUESTS {
            return Err(too_large("the number of requests", requests as u64, MAX_REQUESTS as u64));
        }
        if changes > in_flight::SPAN {
            return Err(too_large("the number of changes", changes, in_flight::SPAN));
        }
        let unsendable = |error| ChannelError::Answer {
            server: shared.name.clone(),
            request: described.clone(),
            found: format!("nothing: {error}"),
        };
        let acknowledged = shared.acknowledged.load(Ordering::Acquire);
        let encoded = Encoded::new(request, shared.wire).map_err(unsendable)?.acknowledged(acknowledged);
        let permit = match InFlightLimit::enter(&shared, changes, encoded.bytes(), deadline) {
            Ok(permit) => permit,
            Err(reason) => {
                let (server, request) = (shared.name.clone(), described);
                return Err(ChannelError::TimedOut { server, request, timeout, reason });
            }
        };
        let message = encoded.message(shared.client, permit.first()).map_err(unsendable)?;
        Ok(Started::new(PendingCall::send(shared, described, message, permit, deadline)?))
    }
}

/// Returns the number of requests in a call, and how many of them are changes.
fn count(request: &Request) -> (usize, u64) {
    match request {
        Request::Batch(all) => (all.len(), all.iter().filter(|one| one.is_change()).count() as u64),
        one => (1, u64::from(one.is_change())),
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.0.name)
    }
}
