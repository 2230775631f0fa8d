//! What a server has of those that it follows: their tables, in memory.

use super::message::{Answer, Ask, Change, Of, Position};
use crate::codec::Sent;
use crate::ledger::Ledger;
use distribute_params::{ClientPushes, Request, TableImage, Tables};
use distribute_server::{Call, Reply, Service};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The tables of servers that this one follows: a [`Service`] beside its own [`ParameterServer`](crate::ParameterServer). A clone is the
/// same service.
///
/// It answers servers with a [follower](crate::ParameterServer::followed_by) alone.
#[derive(Clone, Debug, Default)]
pub struct Replicas {
    of: Arc<Mutex<BTreeMap<u64, Arc<Mutex<Followed>>>>>,
}

/// A server that is followed.
#[derive(Debug, Default)]
struct Followed {
    mirror: Option<Mirror>,
    /// One whose tables are still being sent.
    coming: Option<Mirror>,
}

/// All there is of a server in one of its lives.
#[derive(Debug)]
struct Mirror {
    life: u64,
    changes: u64,
    log: u64,
    tables: Tables,
    ledger: Ledger,
}

impl Replicas {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn followed(&self, server: u64) -> Arc<Mutex<Followed>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).entry(server).or_default().clone()
    }

    pub(super) fn answer(&self, ask: Ask) -> Answer {
        let server = match &ask {
            Ask::Position { server } => *server,
            Ask::Clients(of)
            | Ask::Table(of, _)
            | Ask::Adopt(of, _)
            | Ask::Begin(of, ..)
            | Ask::Put(of, _)
            | Ask::End(of, ..)
            | Ask::Changes(of, ..) => of.server,
        };
        let followed = self.followed(server);
        let mut followed = followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.answer(ask).unwrap_or_else(Answer::Refused)
    }
}

impl Followed {
    fn answer(&mut self, ask: Ask) -> Result<Answer, String> {
        Ok(match ask {
            Ask::Position { .. } => {
                Answer::Position(self.mirror.as_ref().map_or_else(Position::default, Mirror::position))
            }
            Ask::Clients(of) => {
                let mirror = self.of(of)?;
                Answer::Clients(mirror.ledger.clients(), mirror.tables.job())
            }
            Ask::Table(of, name) => {
                let image = self.of(of)?.tables.image(&name).map_err(|error| error.to_string())?;
                Answer::Table(Box::new(image.ok_or_else(|| format!("there is no table {name}"))?))
            }
            Ask::Adopt(of, life) => {
                let mirror = self.of(of)?;
                (mirror.life, mirror.changes, mirror.log) = (life, 0, 0);
                Answer::Done
            }
            Ask::Begin(of, clients, job) => {
                // What comes is newer than what there is, unless it comes from one that has been replaced.
                let newest = self.mirror.as_ref().map_or(0, |mirror| mirror.life);
                if of.life < newest {
                    return Err(format!(
                        "life {newest} of ps {} has begun, and this is life {}",
                        of.server, of.life
                    ));
                }
                self.coming = Some(Mirror::new(of.life, &clients, job)?);
                Answer::Done
            }
            Ask::Put(of, image) => {
                self.coming(of)?.put(*image)?;
                Answer::Done
            }
            Ask::End(of, changes, log) => {
                let coming = self.coming(of)?;
                (coming.changes, coming.log) = (changes, log);
                self.mirror = self.coming.take();
                Answer::Done
            }
            Ask::Changes(of, first, changes) => {
                let made = self.of(of)?.make(first, changes);
                if made.is_err() {
                    // It is not what its server is.
                    self.mirror = None;
                }
                made.map(|()| Answer::Done)?
            }
        })
    }

    fn of(&mut self, of: Of) -> Result<&mut Mirror, String> {
        let life = self.mirror.as_ref().map_or(0, |mirror| mirror.life);
        let mirror = self.mirror.as_mut().filter(|mirror| mirror.life == of.life);
        mirror.ok_or_else(|| format!("of ps {} there is life {life} here, not {}", of.server, of.life))
    }

    fn coming(&mut self, of: Of) -> Result<&mut Mirror, String> {
        let coming = self.coming.as_mut().filter(|coming| coming.life == of.life);
        coming.ok_or_else(|| format!("nobody has begun to send life {} of ps {}", of.life, of.server))
    }
}

impl Mirror {
    fn new(life: u64, clients: &[ClientPushes], job: u64) -> Result<Self, String> {
        let (tables, ledger) = (Tables::new(), Ledger::default());
        clients.iter().try_for_each(|client| ledger.restore(client)).map_err(|error| error.to_string())?;
        tables.handle(&Request::BeginJob { job }).map_err(|error| error.to_string())?;
        Ok(Self { life, changes: 0, log: 0, tables, ledger })
    }

    fn position(&self) -> Position {
        Position { life: self.life, changes: self.changes, log: self.log, tables: self.tables.names() }
    }

    fn put(&self, image: TableImage) -> Result<(), String> {
        self.tables.restore_image(image).map_err(|error| error.to_string())
    }

    /// Makes changes, of which some may have come before.
    fn make(&mut self, first: u64, changes: Vec<Change>) -> Result<(), String> {
        let Some(before) = self.changes.checked_sub(first) else {
            return Err(format!("change {} is missing before {first}", self.changes));
        };
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        for Change { record, log } in changes.into_iter().skip(before) {
            let (client, sequence) = (record.client, record.sequence);
            let sent = Sent::decode(record.head, record.body).map_err(|error| error.to_string())?;
            self.tables.handle(&sent.request).map_err(|error| error.to_string())?;
            self.ledger.note(client, sequence, true);
            self.changes += 1;
            self.log = self.log.max(log.saturating_add(1));
        }
        Ok(())
    }
}

impl Service for Replicas {
    fn call(&self, call: Call, reply: Reply) {
        let answer = match Ask::decode(call.message) {
            Ok(ask) => self.answer(ask),
            Err(error) => Answer::Refused(format!("what {} sent is no request: {error}", call.caller)),
        };
        match answer.encode() {
            Ok(message) => reply.answer(message.head, message.body),
            Err(error) => reply.fail(format!("the answer cannot be sent: {error}")),
        }
    }
}
