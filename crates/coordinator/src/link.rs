//! The connection from a coordinator to a worker.

use crate::failure::Failure;
use crate::message::{Batch, Done, Hello, Request, Response, decode, encode};
use crate::worker::{Collected, SERVICE, Worker};
use distribute_cluster::{Deadline, Task};
use distribute_net::Message;
use distribute_rpc::{CallError, Client, ClientBuilder, Started};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The timeout of one attempt to reach a worker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeout for a worker's response to a coordinator. The worker may have to connect to parameter servers first.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum time for which a message waits to be sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// A way to connect to a worker.
pub trait Connect: Send + Sync {
    /// Returns the name of the worker, for errors.
    fn name(&self) -> String;

    /// Connects the worker to this coordinator. Gives up when `is_wanted` returns `false`.
    ///
    /// # Errors
    /// Returns a [`NotConnected`] if the worker rejects the coordinator or cannot be reached.
    fn connect(&self, hello: &Hello, is_wanted: &dyn Fn() -> bool) -> Result<Box<dyn Link>, NotConnected>;
}

/// The reason why a worker is not connected to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotConnected {
    /// The worker has rejected the coordinator.
    Refused(Failure),
    /// The worker cannot be reached at the moment. A later attempt may succeed.
    Unreachable(String),
}

/// A connection to a worker, which lasts until it is dropped or [lost](Disconnected).
pub trait Link: Send + Sync {
    /// Sends work to the worker.
    ///
    /// # Errors
    /// Returns [`Disconnected`] if the worker has disconnected.
    fn submit(&self, batch: Batch) -> Result<(), Disconnected>;

    /// Waits at most `patience` for results. Returns an empty list if there are none by then.
    ///
    /// # Errors
    /// Returns [`Disconnected`] if the worker has disconnected.
    fn collect(&self, patience: Duration) -> Result<Vec<Done>, Disconnected>;
}

/// The reason why a worker has disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnected(pub String);

/// A worker in another process, reached through its server.
#[derive(Debug)]
pub struct RemoteWorker {
    clients: ClientBuilder,
    task: Task,
}

impl RemoteWorker {
    /// Creates the connector to the worker that is `task` in the cluster of `clients`.
    pub fn new(clients: ClientBuilder, task: Task) -> Self {
        Self { clients, task }
    }
}

impl Connect for RemoteWorker {
    fn name(&self) -> String {
        self.task.to_string()
    }

    fn connect(&self, hello: &Hello, is_wanted: &dyn Fn() -> bool) -> Result<Box<dyn Link>, NotConnected> {
        let unreachable = |error: &dyn fmt::Display| NotConnected::Unreachable(error.to_string());
        let client =
            self.clients.connect(&self.task, CONNECT_TIMEOUT).map_err(|error| unreachable(&error))?;
        let request = message(&Request::Hello(hello.clone())).map_err(|error| unreachable(&error.0))?;
        let started = client.start(SERVICE, request, HELLO_TIMEOUT).map_err(|error| unreachable(&error))?;
        let mut deadline = Deadline::after(HELLO_TIMEOUT);
        while !started.ready(deadline.look()) && !deadline.look().is_zero() && is_wanted() {}
        let response = started.wait(Duration::ZERO).map_err(|error| unreachable(&error))?;
        match decode(&response.body) {
            Ok(Response::Welcome { session }) => {
                Ok(Box::new(RemoteLink { client, session, collecting: Mutex::new(None) }))
            }
            Ok(Response::Refused(failure)) => Err(NotConnected::Refused(failure)),
            Ok(other) => Err(unreachable(&format!("it answers {other:?}: is it of the same build?"))),
            Err(wrong) => Err(unreachable(&format!("it answers {wrong}: is it of the same build?"))),
        }
    }
}

struct RemoteLink {
    client: Client,
    session: u64,
    /// A request for results without a response yet.
    collecting: Mutex<Option<Started>>,
}

impl RemoteLink {
    fn request(&self, request: &Request) -> Result<Started, Disconnected> {
        self.client.start(SERVICE, message(request)?, SEND_TIMEOUT).map_err(lost)
    }
}

impl Link for RemoteLink {
    fn submit(&self, batch: Batch) -> Result<(), Disconnected> {
        // Errors of the request are returned by `collect`.
        self.request(&Request::Submit(Batch { session: self.session, ..batch })).map(drop)
    }

    fn collect(&self, patience: Duration) -> Result<Vec<Done>, Disconnected> {
        let mut collecting = self.collecting.lock();
        let started = match collecting.take() {
            Some(started) => started,
            None => self.request(&Request::Collect { session: self.session })?,
        };
        if !started.ready(patience) {
            *collecting = Some(started);
            return Ok(Vec::new());
        }
        let response = started.wait(SEND_TIMEOUT).map_err(lost)?;
        match decode(&response.body) {
            Ok(Response::Collected(done)) => Ok(done),
            Ok(Response::SessionOver) => {
                Err(Disconnected("it works for another coordinator, or was reconnected".to_owned()))
            }
            Ok(other) => Err(Disconnected(format!("it answers {other:?}: is it of the same build?"))),
            Err(wrong) => Err(Disconnected(format!("it answers {wrong}: is it of the same build?"))),
        }
    }
}

fn message(request: &Request) -> Result<Message, Disconnected> {
    let bytes =
        encode(request).map_err(|error| Disconnected(format!("a message cannot be encoded: {error}")))?;
    Ok(Message::new("", bytes))
}

fn lost(error: CallError) -> Disconnected {
    Disconnected(error.to_string())
}

/// A worker in this process.
#[derive(Clone, Debug)]
pub struct LocalWorker {
    name: String,
    worker: Worker,
}

impl LocalWorker {
    /// Creates the connector to a worker in this process. `name` is the name of the worker in errors.
    pub fn new(name: impl Into<String>, worker: Worker) -> Self {
        Self { name: name.into(), worker }
    }
}

impl Connect for LocalWorker {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn connect(&self, hello: &Hello, _is_wanted: &dyn Fn() -> bool) -> Result<Box<dyn Link>, NotConnected> {
        let session = self.worker.hello(hello).map_err(NotConnected::Refused)?.id();
        Ok(Box::new(LocalLink { worker: self.worker.clone(), session, inbox: Arc::default() }))
    }
}

struct LocalLink {
    worker: Worker,
    session: u64,
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct Inbox {
    state: Mutex<CollectState>,
    changed: Condvar,
}

#[derive(Default)]
struct CollectState {
    is_asked: bool,
    response: Option<Collected>,
}

impl Link for LocalLink {
    fn submit(&self, batch: Batch) -> Result<(), Disconnected> {
        let session = self.worker.session(self.session).ok_or_else(session_over)?;
        session.submit(Batch { session: self.session, ..batch });
        Ok(())
    }

    fn collect(&self, patience: Duration) -> Result<Vec<Done>, Disconnected> {
        if !std::mem::replace(&mut self.inbox.state.lock().is_asked, true) {
            let session = self.worker.session(self.session).ok_or_else(session_over)?;
            let inbox = self.inbox.clone();
            session.collect(Box::new(move |collected| {
                inbox.state.lock().response = Some(collected);
                inbox.changed.notify_all();
            }));
        }
        let mut deadline = Deadline::after(patience);
        let mut state = self.inbox.state.lock();
        loop {
            match state.response.take() {
                Some(Collected::Done(done)) => {
                    state.is_asked = false;
                    return Ok(done);
                }
                Some(Collected::Over) => return Err(session_over()),
                None => {}
            }
            let slice = deadline.look();
            if slice.is_zero() {
                return Ok(Vec::new());
            }
            self.inbox.changed.wait_for(&mut state, slice);
            deadline.look();
        }
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        if let Some(session) = self.worker.session(self.session) {
            session.end();
        }
    }
}

fn session_over() -> Disconnected {
    Disconnected("it works for another coordinator".to_owned())
}
