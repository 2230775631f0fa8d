//! The connection to a parameter server in another process.

mod flow;
mod link;
mod order;
#[cfg(test)]
mod tests;
mod waiting;

use crate::codec::{Encoded, MOST_REQUESTS};
use distribute_cluster::{Deadline, Task};
use distribute_ps_tables::{Channel, ChannelError, Request, Started};
use distribute_rpc::ClientBuilder;
use flow::Flow;
use link::Link;
use order::Order;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waiting::Waits;

/// A connection to a parameter server: a [`Channel`] that any number of threads can use.
///
/// It connects with the first request, and reconnects when the connection is lost, until the deadlines of the
/// requests. Requests without a response are sent again. Changes are numbered, so that the server applies each
/// at most once.
///
/// The number of requests and bytes in flight is limited. Further requests wait for room.
pub struct Connection(Arc<Shared>);

/// The state that a connection shares with the requests in flight.
struct Shared {
    name: String,
    /// The number by which this client identifies itself.
    client: u64,
    link: Link,
    flow: Flow,
    order: Order,
    half: bool,
    /// Whether the server has acknowledged a change.
    acknowledged: AtomicBool,
}

impl Connection {
    /// Creates a connection from the task of `clients` to the server of task `to`.
    pub fn new(clients: ClientBuilder, to: Task) -> Self {
        ConnectionBuilder::new(clients).open(to)
    }

    /// Returns a builder for connections with other settings.
    pub fn builder(clients: ClientBuilder) -> ConnectionBuilder {
        ConnectionBuilder::new(clients)
    }
}

/// The settings of connections to parameter servers.
#[derive(Clone, Debug)]
pub struct ConnectionBuilder {
    clients: ClientBuilder,
    calls: usize,
    bytes: u64,
    half: bool,
}

impl ConnectionBuilder {
    fn new(clients: ClientBuilder) -> Self {
        Self { clients, calls: 64, bytes: 256 << 20, half: false }
    }

    /// Sets the maximum number of requests in flight; 64 by default.
    pub fn calls(self, calls: usize) -> Self {
        Self { calls: calls.max(1), ..self }
    }

    /// Sets the maximum number of bytes of the requests in flight; 256 MiB by default. A larger request is sent
    /// alone.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Sends gradients of `float32`, and receives rows, as `bfloat16`: half as many bytes, with 8 significant
    /// bits. By default they are sent unchanged.
    pub fn bfloat16(self, half: bool) -> Self {
        Self { half, ..self }
    }

    /// Creates a connection to the server of a task of the cluster.
    pub fn open(self, to: Task) -> Connection {
        let Self { clients, calls, bytes, half } = self;
        let name = to.to_string();
        let link = Link::new(clients.window(calls), to);
        let client = RandomState::new().build_hasher().finish();
        let (flow, order) = (Flow::new(calls, bytes), Order::default());
        let acknowledged = AtomicBool::new(false);
        Connection(Arc::new(Shared { name, client, link, flow, order, half, acknowledged }))
    }
}

impl Channel for Connection {
    fn server(&self) -> &str {
        &self.0.name
    }

    fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError> {
        let shared = self.0.clone();
        let deadline = Deadline::after(timeout);
        request
            .check()
            .map_err(|error| ChannelError::Refused { server: shared.name.clone(), refusal: error.into() })?;
        let words = request.describe();
        let (requests, changes) = count(&request);
        let too_large = |what, found, limit| ChannelError::TooLarge {
            server: shared.name.clone(),
            request: words.clone(),
            what,
            found,
            limit,
        };
        if requests > MOST_REQUESTS {
            return Err(too_large("the number of requests", requests as u64, MOST_REQUESTS as u64));
        }
        if changes > flow::SPAN {
            return Err(too_large("the number of changes", changes, flow::SPAN));
        }
        let unsendable = |error| ChannelError::Answer {
            server: shared.name.clone(),
            request: words.clone(),
            found: format!("nothing, as {error}"),
        };
        let acknowledged = shared.acknowledged.load(Ordering::Acquire);
        let encoded = Encoded::new(request, shared.half).map_err(unsendable)?.acknowledged(acknowledged);
        let permit = match Flow::enter(&shared, changes, encoded.bytes(), deadline) {
            Ok(permit) => permit,
            Err(reason) => {
                let (server, request) = (shared.name.clone(), words);
                return Err(ChannelError::Late { server, request, timeout, reason });
            }
        };
        let message = encoded.message(shared.client, permit.first()).map_err(unsendable)?;
        Ok(Started::new(Waits::send(shared, words, message, permit, deadline)?))
    }
}

/// Returns the number of requests and the number of changes.
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
