//! The way to a parameter server in another process.

mod flow;
mod link;
mod order;
#[cfg(test)]
mod tests;
mod waiting;

use crate::codec::{Encoded, MOST_REQUESTS};
use distribute_cluster::{Deadline, Task};
use distribute_params::{Channel, ChannelError, Request, Started};
use distribute_server::ClientBuilder;
use flow::Flow;
use link::Link;
use order::Order;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waiting::Waits;

/// A connection to a parameter server: a [`Channel`] by which any number of threads ask.
///
/// It connects with the first request, and again when the connection is lost, for as long as the requests have time. What was not
/// answered is sent again; changes are numbered, so that the server makes each once at most.
///
/// No more than so many requests and bytes are under way at once: further ones wait for room.
pub struct Connection(Arc<Shared>);

/// What a connection shares with the requests that are under way.
struct Shared {
    name: String,
    /// What this client calls itself.
    client: u64,
    link: Link,
    flow: Flow,
    order: Order,
    half: bool,
    /// Whether the server has acknowledged a change.
    acknowledged: AtomicBool,
}

impl Connection {
    /// A connection of the task of `clients` to the server of task `to`.
    pub fn new(clients: ClientBuilder, to: Task) -> Self {
        ConnectionBuilder::new(clients).open(to)
    }

    /// How a connection is set up.
    pub fn builder(clients: ClientBuilder) -> ConnectionBuilder {
        ConnectionBuilder::new(clients)
    }
}

/// How connections to parameter servers are set up.
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

    /// How many requests may be under way at once; 64 by default.
    pub fn calls(self, calls: usize) -> Self {
        Self { calls: calls.max(1), ..self }
    }

    /// How many bytes the requests that are under way may have; 256 MiB by default. One that is larger goes alone.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Sends gradients of `float32`, and has rows sent, as `bfloat16`: half as many bytes, and numbers of 8 bits. By default
    /// they are sent as they are.
    pub fn bfloat16(self, half: bool) -> Self {
        Self { half, ..self }
    }

    /// A connection to the server of a task of the cluster.
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

/// How many requests there are in it, and how many changes.
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
