//! The thread that keeps the follower of a server up to date.

use super::follower::Follower;
use super::message::{Answer, Ask, Of, Position};
use crate::store::Core;
use crate::{OpenError, REPLICAS};
use distribute_cluster::Task;
use distribute_files::WholeFile;
use distribute_log::heard;
use distribute_server::{Client, ClientBuilder};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long the follower may take for one answer: a table may be large.
const ANSWER: Duration = Duration::from_secs(60);

/// How long one attempt to connect takes at most, and how long until the next.
const CONNECT: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(50);

/// Sends changes to the follower, until it is dropped.
#[derive(Debug)]
pub(crate) struct Feeder {
    follower: Arc<Follower>,
    thread: Option<JoinHandle<()>>,
}

impl Feeder {
    pub fn start(core: &Arc<Core>, (clients, to, number): (ClientBuilder, Task, u64)) -> io::Result<Self> {
        let follower = Arc::<Follower>::default();
        core.follow(follower.clone());
        let feeding = Feeding { core: core.clone(), follower: follower.clone(), clients, to, number };
        let thread = Builder::new().name("distribute-follower".to_owned()).spawn(move || feeding.run())?;
        Ok(Self { follower, thread: Some(thread) })
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.follower.end();
        // It waits for one answer at most.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Feeding {
    core: Arc<Core>,
    follower: Arc<Follower>,
    clients: ClientBuilder,
    to: Task,
    number: u64,
}

impl Feeding {
    fn run(&self) {
        while !self.follower.lock().over {
            let Err(reason) = self.connected() else { continue };
            let first = self.follower.lock().trouble.is_none();
            // A server that has just started, or comes back, is waited for.
            if first && self.follower.lock().life > 0 {
                heard(|| tracing::warn!("changes wait for {}, which follows this server: {reason}", self.to));
            }
            self.follower.update(|state| state.trouble = Some(reason));
            if self.follower.pause(AGAIN) {
                return;
            }
        }
    }

    /// All that goes over one connection.
    fn connected(&self) -> Result<(), String> {
        let client = self.clients.connect(&self.to, CONNECT).map_err(|error| error.to_string())?;
        let life = self.follower.lock().life;
        if life == 0 {
            self.begin(&client)?
        } else {
            self.go_on(&client, life)?
        }
        self.follower.update(|state| state.trouble = None);
        loop {
            let (of, first, changes) = {
                let state = self.follower.await_changes(Duration::from_secs(1));
                if state.over {
                    return Ok(());
                }
                (self.of(state.life), state.first, state.some())
            };
            if changes.is_empty() {
                continue;
            }
            let next = first + changes.len() as u64;
            done(self.ask(&client, Ask::Changes(of, first, changes))?)?;
            self.follower.update(|state| state.arrived(next));
        }
    }

    // INV-57
    /// Begins a life, with the newer state of this server's and its follower's.
    fn begin(&self, client: &Client) -> Result<(), String> {
        let found = self.position(client)?;
        let own = self.core.life().map_err(|error| error.to_string())?;
        // The log has each change before it is sent, unless the machine has lost its power.
        let is_newer =
            found.life > own || found.life == own && own > 0 && found.log > self.core.next_record();
        let life = found.life.max(own) + 1;
        if is_newer {
            let of = self.of(found.life);
            heard(|| {
                tracing::warn!(
                    "this server goes on with {} tables that {} has of it",
                    found.tables.len(),
                    self.to
                );
            });
            let Answer::Clients(clients, job) = self.ask(client, Ask::Clients(of))? else {
                return Err(other());
            };
            let table = |name: &String| match self.ask(client, Ask::Table(of, name.clone()))? {
                Answer::Table(image) => Ok(*image),
                Answer::Refused(text) => Err(text),
                _ => Err(other()),
            };
            self.core.replace(found.tables.iter().map(table), (&clients, job))?;
            self.core.set_life(life).map_err(|error| error.to_string())?;
            done(self.ask(client, Ask::Adopt(of, life))?)?;
        } else {
            self.core.set_life(life).map_err(|error| error.to_string())?;
            self.send_all(client, life)?;
        }
        self.follower.update(|state| state.life = life);
        Ok(())
    }

    /// Goes on where the follower is, or sends it everything.
    fn go_on(&self, client: &Client, life: u64) -> Result<(), String> {
        let found = self.position(client)?;
        let known = {
            let state = self.follower.lock();
            found.life == life && (state.first..=state.next()).contains(&found.changes)
        };
        if found.life > life {
            return Err(format!(
                "{} has life {} of this server, which has life {life}: another one has taken its place",
                self.to, found.life
            ));
        }
        if known {
            self.follower.update(|state| state.arrived(found.changes));
            return Ok(());
        }
        self.send_all(client, life)
    }

    /// Sends all tables. Changes wait until that is over, and reading goes on.
    fn send_all(&self, client: &Client, life: u64) -> Result<(), String> {
        let of = self.of(life);
        let _all = self.core.orders();
        let next = self.follower.lock().next();
        done(self.ask(client, Ask::Begin(of, self.core.clients(), self.core.job()))?)?;
        for name in self.core.names() {
            let image = self.core.image(&name).map_err(|error| error.to_string())?;
            if let Some(image) = image {
                done(self.ask(client, Ask::Put(of, Box::new(image)))?)?;
            }
        }
        done(self.ask(client, Ask::End(of, next, self.core.next_record()))?)?;
        self.follower.update(|state| state.arrived(next));
        Ok(())
    }

    fn position(&self, client: &Client) -> Result<Position, String> {
        match self.ask(client, Ask::Position { server: self.number })? {
            Answer::Position(position) => Ok(position),
            Answer::Refused(text) => Err(text),
            _ => Err(other()),
        }
    }

    fn ask(&self, client: &Client, ask: Ask) -> Result<Answer, String> {
        let message = ask.encode().map_err(|error| error.to_string())?;
        let answer = client.call(REPLICAS, message, ANSWER).map_err(|error| error.to_string())?;
        Answer::decode(answer).map_err(|error| error.to_string())
    }

    fn of(&self, life: u64) -> Of {
        Of { server: self.number, life }
    }
}

fn done(answer: Answer) -> Result<(), String> {
    match answer {
        Answer::Done => Ok(()),
        Answer::Refused(text) => Err(text),
        _ => Err(other()),
    }
}

fn other() -> String {
    "it answers something else: are both of the same build?".to_owned()
}

/// Where a server keeps the number of its life.
fn path(folder: &Path) -> PathBuf {
    folder.join("life")
}

/// The life of which a folder is; 0 if it is of none.
pub(crate) fn read_life(folder: &Path) -> Result<u64, OpenError> {
    let path = path(folder);
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| OpenError::Snapshot {
            path: path.clone(),
            reason: format!("{text:?} is no number"),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(OpenError::io("reading", path)(error)),
    }
}

/// Writes it, so that it is there whole or not at all.
pub(crate) fn write_life(folder: &Path, life: u64) -> Result<(), OpenError> {
    let path = path(folder);
    let write = || {
        let mut file = WholeFile::create(&path)?;
        file.write_all(life.to_string().as_bytes())?;
        file.finish()
    };
    write().map_err(OpenError::io("writing", path.clone()))
}
