//! The handshake on a connection that never blocks.

use crate::handshake::{Hearing, Reason, Refusal, Words};
use crate::identity::{Access, Doubt};
use crate::poll;
use crate::stream::Stream;
use distribute_cluster::Task;
use rustix::event::PollFd;
use std::io::{self, IoSlice};

/// The handshake on a connection, word by word.
#[derive(Debug)]
pub(super) struct Conversation {
    stream: Stream,
    hearing: Hearing,
    /// What has still to be said.
    unsaid: Vec<u8>,
    /// Whether words have come.
    has_heard: bool,
    /// Whether anything has been said.
    pub has_spoken: bool,
}

/// Why a conversation ends.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection has ended.
    Broken(String),
    /// What came is not to be trusted, or not understood.
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

    /// Whether something has still to be said.
    pub fn is_speaking(&self) -> bool {
        !self.unsaid.is_empty() || self.stream.has_unsent()
    }

    /// Sends what is to be said, as far as it goes at once.
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

    /// Listens for the next words; `None` if they have not come yet.
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

    /// Reads and forgets what has come; whether there may come more.
    pub fn forget(&mut self) -> bool {
        // What was to be said last may still be on the way.
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

    /// Makes sure that the other side, which has shown to be of the job, may speak for this task.
    pub fn vouch(&self, access: &Access, task: &Task) -> Result<(), Trouble> {
        access.vouch(self.stream.socket(), self.stream.certificate(), task).map_err(|doubt| match doubt {
            Doubt::Ended => {
                Trouble::Broken("the other side has ended it, before it was known whose process it is".into())
            }
            Doubt::Refused(refusal) => Trouble::Refused(refusal),
        })
    }

    /// Tells the other side that nothing more will be said.
    pub fn fall_silent(&mut self) {
        let _ = self.speak();
        self.stream.finish();
    }

    /// Whether something that makes sense has come from the other side.
    pub fn has_begun(&self) -> bool {
        self.has_heard || self.stream.has_begun()
    }

    pub fn into_stream(self) -> Stream {
        self.stream
    }
}

/// What an error of the connection means. That it would block is none.
fn trouble(error: io::Error) -> Result<(), Trouble> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(()),
        // Of rustls: a certificate of another CA, or no TLS at all.
        io::ErrorKind::InvalidData => {
            let text = format!(
                "TLS: {error}: give all tasks of the job the same DISTRIBUTE_SECRET, or certificates of one CA"
            );
            Err(Trouble::Refused(Refusal::new(Reason::Secret, text)))
        }
        _ => Err(Trouble::Broken(crate::link::text(&error))),
    }
}
