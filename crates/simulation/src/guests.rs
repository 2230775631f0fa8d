//! Those who have connected and not yet shown who they are, as in `distribute_net`'s reception.

use crate::context::Context;
use crate::network::{Arrival, Conn};
use distribute_net::handshake::host::Answer;
use distribute_net::handshake::{Hearing, Hello, Host, Reason, Refusal, Words};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the handshake may take.
pub const HANDSHAKE: Duration = Duration::from_secs(5);

/// Words out of the bytes of one arrival.
pub fn words(hearing: &mut Hearing, mut bytes: &[u8]) -> Result<Option<Words>, Refusal> {
    while !bytes.is_empty() {
        let buffer = hearing.buffer();
        let read = buffer.len().min(bytes.len());
        buffer[..read].copy_from_slice(&bytes[..read]);
        bytes = &bytes[read..];
        if let Some(words) = hearing.advance(read)? {
            return Ok(Some(words));
        }
    }
    Ok(None)
}

/// The handshakes of those who have connected.
#[derive(Debug)]
pub struct Guests {
    mine: Hello,
    all: BTreeMap<Conn, Guest>,
}

#[derive(Debug)]
struct Guest {
    host: Host,
    hearing: Hearing,
    patience: Duration,
}

impl Guests {
    /// Nobody has connected. `mine` is what they are compared with.
    pub fn new(mine: Hello) -> Self {
        Self { mine, all: BTreeMap::new() }
    }

    /// Words have come over a connection that is no link. `decide` says who may stay. Gives the number of a worker that does.
    pub fn hear(
        &mut self,
        context: &mut Context<'_>,
        conn: Conn,
        bytes: &[u8],
        decide: &mut dyn FnMut(&Hello) -> Result<(), Refusal>,
    ) -> Option<usize> {
        let patience = context.now() + HANDSHAKE;
        let mine = &self.mine;
        let guest = self.all.entry(conn).or_insert_with(|| {
            let host = Host::new(mine.clone(), None, [0; 32]);
            Guest { host, hearing: Hearing::default(), patience }
        });
        let answer = match words(&mut guest.hearing, bytes) {
            Ok(None) => return None,
            Ok(Some(words)) => guest.host.hear(words),
            Err(refusal) => Err(refusal),
        };
        let refusal = match answer {
            Ok(Answer::Say(words)) => {
                context.send(conn, Arrival::Words(words));
                return None;
            }
            Ok(Answer::Applies(hello, _)) => match decide(&hello) {
                Err(refusal) if !context.planted.is_some_and(|planted| planted.admits(&refusal)) => refusal,
                _ => {
                    context.note(|| format!("lets worker {} in", hello.rank));
                    context.send(conn, Arrival::Words(Host::welcome()));
                    self.all.remove(&conn);
                    return Some(hello.rank);
                }
            },
            Err(refusal) => refusal,
        };
        self.refuse(context, conn, refusal);
        None
    }

    fn refuse(&mut self, context: &mut Context<'_>, conn: Conn, refusal: Refusal) {
        context.note(|| format!("refuses a connection: {refusal}"));
        context.send(conn, Arrival::Words(Host::refuse(refusal, false)));
        context.close(conn, "it closed its connection");
        self.all.remove(&conn);
    }

    /// A connection has ended.
    pub fn lose(&mut self, conn: Conn) {
        self.all.remove(&conn);
    }

    /// Refuses those whose handshake takes too long.
    pub fn wake(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        let late: Vec<_> =
            self.all.iter().filter(|(_, guest)| guest.patience <= now).map(|(conn, _)| *conn).collect();
        for conn in late {
            self.refuse(context, conn, Refusal::new(Reason::Late, "the handshake took more than 5 s"));
        }
    }

    /// Whether somebody is about to tell who it is.
    pub fn are_talking(&self) -> bool {
        !self.all.is_empty()
    }

    /// When to be woken.
    pub fn next(&self) -> Option<Duration> {
        self.all.values().map(|guest| guest.patience).min()
    }
}
