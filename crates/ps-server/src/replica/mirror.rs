//! [`Replicas`]: the copies of other servers that a server keeps in memory.

use super::message::{FollowerRequest, FollowerResponse, Position, ServerLife};
use super::replicated::Replicated;
use crate::codec::EncodedRequest;
use crate::ledger::Ledger;
use crate::store::{Change, StateHeader};
use distribute_cluster::{Job, Task};
use distribute_ps_tables::{TableImage, Tables};
use distribute_rpc::{Call, Reply, Service};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A [`Service`] that keeps copies of the servers that this server follows. Add it to a server in addition to its
/// [`ParameterServer`](crate::ParameterServer). Clones share the same copies.
///
/// A request about server `n` is rejected unless it comes from the task `ps n`, so that a server with a
/// [follower](crate::ParameterServer::followed_by) has access only to the copy of its own tables. The exception is the
/// request for a copy that a follower sends to the server that it follows.
///
/// [`ParameterServer::replicas`](crate::ParameterServer::replicas) creates a service that also requests its copy when
/// it starts.
#[derive(Clone, Debug)]
pub struct Replicas {
    of: Arc<Mutex<BTreeMap<u64, Arc<Mutex<Followed>>>>>,
    /// The random number of this process.
    run: u64,
    /// The number of complete copies.
    complete: Arc<AtomicU64>,
    /// The server in this process, which a follower may ask for its copy.
    own: Option<Arc<Replicated>>,
}

/// The copy of one server.
#[derive(Debug, Default)]
struct Followed {
    mirror: Option<Mirror>,
    /// A partially received copy. The complete one remains until the transfer ends.
    incomplete: Option<Mirror>,
}

/// The state of a server in one of its lives.
#[derive(Debug)]
struct Mirror {
    life: u64,
    changes: u64,
    log: u64,
    tables: Tables,
    ledger: Ledger,
    /// The names of all tables of the state, while it is being received.
    names: Vec<String>,
    lost: Vec<String>,
    /// Whether a change could not be applied. The copy nevertheless contains all acknowledged changes.
    broken: bool,
}

impl Default for Replicas {
    fn default() -> Self {
        let run = RandomState::new().build_hasher().finish();
        Self { of: Arc::default(), run, complete: Arc::default(), own: None }
    }
}

impl Replicas {
    /// Creates a service without copies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the service for a process whose own server is `own`.
    pub(crate) fn beside(own: Arc<Replicated>, complete: Arc<AtomicU64>) -> Self {
        Self { own: Some(own), complete, ..Self::default() }
    }

    /// Returns the random number of this process.
    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    /// Executes a request of a task, which may only access the copy of its own tables.
    // INV-57
    pub(super) fn answer(&self, caller: &Task, ask: FollowerRequest) -> FollowerResponse {
        let server = ask.server();
        if let FollowerRequest::Copy { run, .. } = ask {
            let follows = self.own.as_ref().is_some_and(|own| own.asked((caller, server), run));
            return if follows {
                FollowerResponse::Done
            } else {
                FollowerResponse::Refused(format!("{caller} does not follow ps {server} here"))
            };
        }
        if caller.job != Job::Ps || caller.index as u64 != server {
            return FollowerResponse::Refused(format!(
                "{caller} is not ps {server}, and each server only sends and requests the copy of its own \
                 tables"
            ));
        }
        let followed = {
            let mut of = self.of.lock();
            of.entry(server).or_default().clone()
        };
        let mut followed = followed.lock();
        let before = followed.mirror.is_some();
        let answer = followed.answer(self.run, ask).unwrap_or_else(FollowerResponse::Refused);
        if !before && followed.mirror.is_some() {
            self.complete.fetch_add(1, Ordering::AcqRel);
        }
        answer
    }
}

impl Followed {
    fn answer(&mut self, run: u64, ask: FollowerRequest) -> Result<FollowerResponse, String> {
        Ok(match ask {
            FollowerRequest::Copy { .. } | FollowerRequest::Position { .. } => {
                FollowerResponse::Position(self.position(run))
            }
            FollowerRequest::StateHeader(of) => {
                FollowerResponse::StateHeader(Box::new(self.of(of)?.header()))
            }
            FollowerRequest::Table(of, name) => {
                let image = self.of(of)?.tables.image(&name).map_err(|error| error.to_string())?;
                FollowerResponse::Table(Box::new(image.ok_or_else(|| format!("there is no table {name}"))?))
            }
            FollowerRequest::Adopt(of, life) => {
                let mirror = self.of(of)?;
                if mirror.broken || of.life.checked_add(1) != Some(life) {
                    return Err(format!(
                        "life {} of ps {} cannot continue as life {life}",
                        of.life, of.server
                    ));
                }
                (mirror.life, mirror.changes, mirror.log) = (life, 0, 0);
                FollowerResponse::Done
            }
            FollowerRequest::Begin(of, header) => {
                // The state is newer than the copy, unless it comes from a server that was replaced.
                let newest = self.mirror.as_ref().map_or(0, |mirror| mirror.life);
                if of.life < newest {
                    return Err(format!(
                        "life {newest} of ps {} has begun, and this is life {}",
                        of.server, of.life
                    ));
                }
                self.incomplete = Some(Mirror::new(of.life, *header)?);
                FollowerResponse::Done
            }
            FollowerRequest::Put(of, image) => {
                self.incomplete(of)?.put(*image)?;
                FollowerResponse::Done
            }
            FollowerRequest::End(of, changes, log) => {
                let incomplete = self.incomplete(of)?;
                let missing = incomplete.missing();
                if !missing.is_empty() {
                    return Err(format!("tables have not arrived: {}", missing.join(", ")));
                }
                (incomplete.changes, incomplete.log) = (changes, log);
                self.mirror = self.incomplete.take();
                FollowerResponse::Done
            }
            FollowerRequest::Changes(of, first, changes) => {
                self.of(of)?.make(first, changes)?;
                FollowerResponse::Done
            }
        })
    }

    fn position(&self, run: u64) -> Position {
        let whole = self.mirror.as_ref().map_or_else(Position::default, Mirror::position);
        let incomplete = self.incomplete.as_ref().map(|mirror| (mirror.life, mirror.names.clone()));
        Position { run, incomplete, ..whole }
    }

    fn of(&mut self, of: ServerLife) -> Result<&mut Mirror, String> {
        let life = self.mirror.as_ref().map_or(0, |mirror| mirror.life);
        let mirror = self.mirror.as_mut().filter(|mirror| mirror.life == of.life);
        mirror.ok_or_else(|| format!("of ps {} there is life {life} here, not {}", of.server, of.life))
    }

    fn incomplete(&mut self, of: ServerLife) -> Result<&mut Mirror, String> {
        let incomplete = self.incomplete.as_mut().filter(|incomplete| incomplete.life == of.life);
        incomplete.ok_or_else(|| format!("no server has begun to send life {} of ps {}", of.life, of.server))
    }
}

impl Mirror {
    fn new(life: u64, header: StateHeader) -> Result<Self, String> {
        let StateHeader { clients, job, tables: names, lost } = header;
        let (tables, ledger) = (Tables::new(), Ledger::default());
        clients.iter().try_for_each(|client| ledger.restore(client)).map_err(|error| error.to_string())?;
        tables.restore_job(job);
        Ok(Self { life, changes: 0, log: 0, tables, ledger, names, lost, broken: false })
    }

    fn header(&self) -> StateHeader {
        StateHeader {
            clients: self.ledger.clients(),
            job: self.tables.job(),
            tables: self.tables.names(),
            lost: self.lost.clone(),
        }
    }

    fn position(&self) -> Position {
        let Self { life, changes, log, broken, .. } = *self;
        Position { life, changes, log, broken, tables: self.tables.names(), ..Position::default() }
    }

    fn put(&self, image: TableImage) -> Result<(), String> {
        self.tables.restore_image(image).map_err(|error| error.to_string())
    }

    /// Returns the names of the tables that have not been received yet.
    fn missing(&self) -> Vec<&str> {
        let there = self.tables.names();
        self.names
            .iter()
            .map(String::as_str)
            .filter(|name| !there.iter().any(|there| there == name))
            .collect()
    }

    /// Applies changes, the first of which has the number `first`. Changes that were already applied are skipped. If a
    /// change cannot be applied, marks the copy as broken.
    fn make(&mut self, first: u64, changes: Vec<Change>) -> Result<(), String> {
        if self.broken {
            return Err(format!("change {} could not be applied", self.changes));
        }
        let Some(before) = self.changes.checked_sub(first) else {
            return Err(format!("change {} is missing before {first}", self.changes));
        };
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        for Change { record, log } in changes.into_iter().skip(before) {
            let (client, sequence) = (record.client, record.sequence);
            let made = EncodedRequest::decode(record.head, record.body)
                .map_err(|error| error.to_string())
                .and_then(|sent| self.tables.handle(&sent.request).map_err(|error| error.to_string()));
            if let Err(error) = made {
                // The copy differs from its server. Until the state is sent again, it is the only copy of the
                // acknowledged changes.
                self.broken = true;
                return Err(error);
            }
            self.ledger.record(client, sequence, true);
            self.changes += 1;
            self.log = self.log.max(log.saturating_add(1));
        }
        Ok(())
    }
}

impl Service for Replicas {
    fn call(&self, call: Call, reply: Reply) {
        let answer = match FollowerRequest::decode(call.message) {
            Ok(ask) => self.answer(&call.caller, ask),
            Err(error) => FollowerResponse::Refused(format!(
                "{} sent something other than a request: {error}",
                call.caller
            )),
        };
        match answer.encode() {
            Ok(message) => reply.answer(message.head, message.body),
            Err(error) => reply.fail(format!("the answer cannot be sent: {error}")),
        }
    }
}
