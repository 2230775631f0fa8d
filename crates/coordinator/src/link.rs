//! The connection from a coordinator to a worker.

use crate::failure::Failure;
use crate::message::{Answer, Batch, Done, Hello, Question, decode, encode};
use crate::worker::{Collected, SERVICE, Worker};
use distribute_cluster::{Deadline, Task};
use distribute_net::Message;
use distribute_rpc::{CallError, Client, ClientBuilder, Started};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The timeout of one attempt to reach a worker.
const REACHED: Duration = Duration::from_secs(1);

/// The timeout for a worker's answer to a coordinator. It may need to connect to parameter servers first.
const ANSWERED: Duration = Duration::from_secs(60);

/// The maximum time that a message waits for room.
const ROOM: Duration = Duration::from_secs(60);

/// A way to connect to a worker.
pub trait Connect: Send + Sync {
    /// Returns the name of the worker, for errors.
    fn name(&self) -> String;

    /// Connects the worker to this coordinator. Gives up when `is_wanted` returns false.
    ///
    /// # Errors
    /// Returns a [`NotConnected`] if the worker refuses or cannot be reached.
    fn connect(&self, hello: &Hello, is_wanted: &dyn Fn() -> bool) -> Result<Box<dyn Link>, NotConnected>;
}

/// The reason why a worker is not connected to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotConnected {
    /// The worker has refused the coordinator.
    Refused(Failure),
    /// The worker cannot be reached at the moment.
    Away(String),
}

/// The connection to a worker, until it is dropped or [lost](Lost).
pub trait Link: Send + Sync {
    /// Sends work.
    ///
    /// # Errors
    /// Returns [`Lost`] if the worker has disconnected.
    fn submit(&self, batch: Batch) -> Result<(), Lost>;

    /// Waits for results, for at most `patience`. Returns an empty list if there are none in that time.
    ///
    /// # Errors
    /// Returns [`Lost`] if the worker has disconnected.
    fn collect(&self, patience: Duration) -> Result<Vec<Done>, Lost>;
}

/// The reason why a worker has disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost(pub String);

/// A worker in another process, reached through its server.
#[derive(Debug)]
pub struct RemoteWorker {
    clients: ClientBuilder,
    task: Task,
}

impl RemoteWorker {
    /// Creates the connector of the worker with this task in the cluster of `clients`.
    pub fn new(clients: ClientBuilder, task: Task) -> Self {
        Self { clients, task }
    }
}

impl Connect for RemoteWorker {
    fn name(&self) -> String {
        self.task.to_string()
    }

    fn connect(&self, hello: &Hello, is_wanted: &dyn Fn() -> bool) -> Result<Box<dyn Link>, NotConnected> {
        let away = |error: &dyn fmt::Display| NotConnected::Away(error.to_string());
        let client = self.clients.connect(&self.task, REACHED).map_err(|error| away(&error))?;
        let question = message(&Question::Hello(hello.clone())).map_err(|error| away(&error.0))?;
        let asked = client.start(SERVICE, question, ANSWERED).map_err(|error| away(&error))?;
        let mut deadline = Deadline::after(ANSWERED);
        while !asked.ready(deadline.look()) && !deadline.look().is_zero() && is_wanted() {}
        let answer = asked.wait(Duration::ZERO).map_err(|error| away(&error))?;
        match decode(&answer.body) {
            Ok(Answer::Welcome { session }) => {
                Ok(Box::new(RemoteLink { client, session, asked: Mutex::new(None) }))
            }
            Ok(Answer::Refused(failure)) => Err(NotConnected::Refused(failure)),
            Ok(other) => Err(away(&format!("it answers {other:?}: is it of the same build?"))),
            Err(wrong) => Err(away(&format!("it answers {wrong}: is it of the same build?"))),
        }
    }
}

struct RemoteLink {
    client: Client,
    session: u64,
    /// The request for results that has no response yet.
    asked: Mutex<Option<Started>>,
}

impl RemoteLink {
    fn ask(&self, question: &Question) -> Result<Started, Lost> {
        self.client.start(SERVICE, message(question)?, ROOM).map_err(lost)
    }
}

impl Link for RemoteLink {
    fn submit(&self, batch: Batch) -> Result<(), Lost> {
        // Errors of the request are returned by `collect`.
        self.ask(&Question::Submit(Batch { session: self.session, ..batch })).map(drop)
    }

    fn collect(&self, patience: Duration) -> Result<Vec<Done>, Lost> {
        let mut asked = self.asked.lock();
        let started = match asked.take() {
            Some(started) => started,
            None => self.ask(&Question::Collect { session: self.session })?,
        };
        if !started.ready(patience) {
            *asked = Some(started);
            return Ok(Vec::new());
        }
        let answer = started.wait(ROOM).map_err(lost)?;
        match decode(&answer.body) {
            Ok(Answer::Collected(done)) => Ok(done),
            Ok(Answer::Over) => {
                Err(Lost("it works for another coordinator, or was connected to again".to_owned()))
            }
            Ok(other) => Err(Lost(format!("it answers {other:?}: is it of the same build?"))),
            Err(wrong) => Err(Lost(format!("it answers {wrong}: is it of the same build?"))),
        }
    }
}

fn message(question: &Question) -> Result<Message, Lost> {
    let bytes = encode(question).map_err(|error| Lost(format!("a message cannot be encoded: {error}")))?;
    Ok(Message::new("", bytes))
}

fn lost(error: CallError) -> Lost {
    Lost(error.to_string())
}

/// A worker in this process.
#[derive(Clone, Debug)]
pub struct LocalWorker {
    name: String,
    worker: Worker,
}

impl LocalWorker {
    /// Creates the connector of this worker. `name` is used in errors.
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
    state: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Default)]
struct Asked {
    is_asked: bool,
    answer: Option<Collected>,
}

impl Inbox {}

impl Link for LocalLink {
    fn submit(&self, batch: Batch) -> Result<(), Lost> {
        let session = self.worker.session(self.session).ok_or_else(over)?;
        session.submit(Batch { session: self.session, ..batch });
        Ok(())
    }

    fn collect(&self, patience: Duration) -> Result<Vec<Done>, Lost> {
        if !std::mem::replace(&mut self.inbox.state.lock().is_asked, true) {
            let session = self.worker.session(self.session).ok_or_else(over)?;
            let inbox = self.inbox.clone();
            session.collect(Box::new(move |collected| {
                inbox.state.lock().answer = Some(collected);
                inbox.changed.notify_all();
            }));
        }
        let mut deadline = Deadline::after(patience);
        let mut asked = self.inbox.state.lock();
        loop {
            match asked.answer.take() {
                Some(Collected::Done(done)) => {
                    asked.is_asked = false;
                    return Ok(done);
                }
                Some(Collected::Over) => return Err(over()),
                None => {}
            }
            let slice = deadline.look();
            if slice.is_zero() {
                return Ok(Vec::new());
            }
            self.inbox.changed.wait_for(&mut asked, slice);
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

fn over() -> Lost {
    Lost("it works for another coordinator".to_owned())
}
