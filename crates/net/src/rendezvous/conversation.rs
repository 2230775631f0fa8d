//! The handshake on a connection that never blocks.

use crate::handshake::{Hearing, Reason, Refusal, Words};
use crate::identity::{Access, Doubt};
use crate::poll;
use crate::stream::Stream;
use distribute_cluster::Task;
use rustix::event::PollFd;
use std::io::{self, IoSlice};

/// The handshake on a connection, one message at a time.
#[derive(Debug)]
pub(super) struct Conversation {
    stream: Stream,
    hearing: Hearing,
    /// The bytes that are still to be sent.
    unsaid: Vec<u8>,
    /// Whether words were received.
    has_heard: bool,
    /// Whether anything was sent.
    pub has_spoken: bool,
}

/// The reason that a handshake has failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection was closed.
    Broken(String),
    /// The received words are not trusted or not understood.
    Refused(Refusal),
}

impl Conversation {
    pub fn new(stream: Stream) -> Self {
        let hearing = Hearing::default();
        Self { stream, hearing, unsaid: Vec::new(), has_heard: false, has_spoken: false }
    }

    pub fn interest(&self) -> PollFd<'_> {
        poll::interest(&**self.stream.socket(), self.is_speaking())
    }

    pub fn say(&mut self, words: &[u8]) {
        self.has_spoken = true;
        self.unsaid.extend_from_slice(words);
    }

    /// Whether anything is still to be sent.
    pub fn is_speaking(&self) -> bool {
        !self.unsaid.is_empty() || self.stream.has_unsent()
    }

    /// Sends without blocking.
    pub fn speak(&mut self) -> Result<(), Trouble> {
        while !self.unsaid.is_empty() {
            match self.stream.write(&[IoSlice::new(&self.unsaid)]) {
                Ok(written) => drop(self.unsaid.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return trouble(error),
            }
        }
        self.stream.flush().or_else(trouble)
    }

    /// Reads the next words. Returns `None` if they are not complete yet.
    pub fn listen(&mut self) -> Result<Option<Words>, Trouble> {
        loop {
            match self.stream.read(self.hearing.buffer()) {
                Ok(0) => return Err(Trouble::Broken("it closed its connection".to_owned())),
                Ok(read) => {
                    if let Some(words) = self.hearing.advance(read).map_err(Trouble::Refused)? {
                        self.has_heard = true;
                        return Ok(Some(words));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return trouble(error).map(|()| None),
            }
        }
    }

    /// Reads and discards what was received. Returns `true` if more may follow.
    pub fn forget(&mut self) -> bool {
        // The last words may still be on their way.
        let _ = self.speak();
        let mut bytes = [0; 1024];
        for _ in 0..16 {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Checks that the other side, which has shown that it belongs to the job, may act as this task.
    pub fn vouch(&self, access: &Access, task: &Task) -> Result<(), Trouble> {
        access.vouch(self.stream.socket(), self.stream.certificate(), task).map_err(|doubt| match doubt {
            Doubt::Ended => {
                Trouble::Broken("the other side has ended it, before it was known whose process it is".into())
            }
            Doubt::Refused(refusal) => Trouble::Refused(refusal),
        })
    }

    /// Tells the other side that nothing more follows.
    pub fn fall_silent(&mut self) {
        let _ = self.speak();
        self.stream.finish();
    }

    /// Whether the other side has sent anything valid.
    pub fn has_begun(&self) -> bool {
        self.has_heard || self.stream.has_begun()
    }

    pub fn into_stream(self) -> Stream {
        self.stream
    }
}

/// Converts an error of the connection. `WouldBlock` is not an error.
fn trouble(error: io::Error) -> Result<(), Trouble> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(()),
        // From rustls: a certificate of another CA, or no TLS at all.
        io::ErrorKind::InvalidData => {
            let text = format!(
                "TLS: {error}: give all tasks of the job the same DISTRIBUTE_SECRET, or certificates of one CA"
            );
            Err(Trouble::Refused(Refusal::new(Reason::Secret, text)))
        }
        _ => Err(Trouble::Broken(crate::link::text(&error))),
    }
}
