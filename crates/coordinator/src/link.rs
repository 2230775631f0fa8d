//! The way from a coordinator to a worker.

use crate::failure::Failure;
use crate::message::{Answer, Batch, Done, Hello, Question, decode, encode};
use crate::worker::{Collected, SERVICE, Worker};
use distribute_cluster::{Deadline, Task};
use distribute_net::Message;
use distribute_server::{CallError, Client, ClientBuilder, Started};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long it is tried to reach a worker before its state is looked at again.
const REACHED: Duration = Duration::from_secs(1);

/// How long a worker may take to answer that it works for this coordinator: it connects to parameter servers first.
const ANSWERED: Duration = Duration::from_secs(60);

/// How long a message may wait for room.
const ROOM: Duration = Duration::from_secs(60);

/// How a coordinator reaches a worker.
pub trait Connect: Send + Sync {
    /// The worker, as errors name it.
    fn name(&self) -> String;

    /// Asks the worker to work for this coordinator, for as long as `is_wanted` says so.
    ///
    /// # Errors
    /// [`NotConnected`].
    fn connect(&self, hello: &Hello, is_wanted: &dyn Fn() -> bool) -> Result<Box<dyn Link>, NotConnected>;
}

/// Why a worker does not work for a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotConnected {
    /// It says no.
    Refused(Failure),
    /// It cannot be reached now.
    Away(String),
}

/// A worker that works for a coordinator, until the link is dropped or [lost](Lost).
pub trait Link: Send + Sync {
    /// Sends work.
    ///
    /// # Errors
    /// [`Lost`].
    fn submit(&self, batch: Batch) -> Result<(), Lost>;

    /// What was done; nothing, if nothing was within `patience`.
    ///
    /// # Errors
    /// [`Lost`].
    fn collect(&self, patience: Duration) -> Result<Vec<Done>, Lost>;
}

/// Why nothing more is heard of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost(pub String);

/// A worker in another process, by its server.
#[derive(Debug)]
pub struct RemoteWorker {
    clients: ClientBuilder,
    task: Task,
}

impl RemoteWorker {
    /// The worker that has this task in the cluster of `clients`.
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
    /// The question what was done that has no answer yet.
    asked: Mutex<Option<Started>>,
}

impl RemoteLink {
    fn ask(&self, question: &Question) -> Result<Started, Lost> {
        self.client.start(SERVICE, message(question)?, ROOM).map_err(lost)
    }
}

impl Link for RemoteLink {
    fn submit(&self, batch: Batch) -> Result<(), Lost> {
        // What is wrong with it is said where it is asked what was done.
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
    /// This worker, by this name in errors.
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
