//! Connections that are not authenticated yet, which `distribute_net` handles in its `Reception`.

use crate::context::Context;
use crate::network::{Arrival, Conn};
use distribute_net::handshake::host::Answer;
use distribute_net::handshake::{HandshakeDecoder, Hello, Host, Reason, Refusal, Words};
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum duration of a handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(5);

/// Decodes the bytes of an arrival. Returns the handshake message that they complete, or `None` if more bytes are
/// needed. Bytes after the message are ignored. If the bytes are malformed, returns the refusal to send.
pub fn words(hearing: &mut HandshakeDecoder, mut bytes: &[u8]) -> Result<Option<Words>, Refusal> {
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

/// The handshakes that are in progress.
#[derive(Debug)]
pub struct Guests {
    mine: Hello,
    all: BTreeMap<Conn, Guest>,
}

#[derive(Debug)]
struct Guest {
    host: Host,
    hearing: HandshakeDecoder,
    patience: Duration,
}

impl Guests {
    /// Creates an empty set of handshakes. `mine` is compared with the hello of each guest.
    pub fn new(mine: Hello) -> Self {
        Self { mine, all: BTreeMap::new() }
    }

    /// Handles bytes that arrive over a connection which is not a link, and sends the answer. `decide` admits or
    /// rejects a guest whose handshake is complete. Returns the rank of the worker if it is admitted; `None` if it is
    /// rejected, or if the handshake continues.
    pub fn receive(
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
            Guest { host, hearing: HandshakeDecoder::default(), patience }
        });
        let answer = match words(&mut guest.hearing, bytes) {
            Ok(None) => return None,
            Ok(Some(words)) => guest.host.receive(words),
            Err(refusal) => Err(refusal),
        };
        let refusal = match answer {
            Ok(Answer::Send(words)) => {
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

    /// Removes a connection that was closed.
    pub fn mark_lost(&mut self, conn: Conn) {
        self.all.remove(&conn);
    }

    /// Rejects guests whose handshake takes too long.
    pub fn wake(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        let late: Vec<_> =
            self.all.iter().filter(|(_, guest)| guest.patience <= now).map(|(conn, _)| *conn).collect();
        for conn in late {
            self.refuse(context, conn, Refusal::new(Reason::Late, "the handshake took more than 5 s"));
        }
    }

    /// Returns `true` if any guest is in its handshake.
    pub fn are_talking(&self) -> bool {
        !self.all.is_empty()
    }

    /// Returns the time at which the next handshake times out; `None` if there are no handshakes.
    pub fn next(&self) -> Option<Duration> {
        self.all.values().map(|guest| guest.patience).min()
    }
}
