//! A non-blocking connection during its handshake.

use crate::handshake::{HandshakeDecoder, Reason, Refusal, Words};
use crate::identity::{Access, VerifyError};
use crate::poll;
use crate::stream::Stream;
use distribute_cluster::Task;
use rustix::event::PollFd;
use std::io::{self, IoSlice};

/// A non-blocking connection that sends and receives handshake messages.
#[derive(Debug)]
pub(super) struct HandshakeStream {
    stream: Stream,
    decoder: HandshakeDecoder,
    /// The bytes that are still to be sent.
    unsent: Vec<u8>,
    /// Whether a message was received.
    has_received: bool,
    /// Whether anything was queued to be sent.
    pub has_sent: bool,
}

/// The reason why a handshake has failed.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The connection was closed, or has failed.
    Broken(String),
    /// One side rejects the other, for example because a message could not be authenticated or understood.
    Refused(Refusal),
}

impl HandshakeStream {
    pub fn new(stream: Stream) -> Self {
        let decoder = HandshakeDecoder::default();
        Self { stream, decoder, unsent: Vec::new(), has_received: false, has_sent: false }
    }

    pub fn interest(&self) -> PollFd<'_> {
        poll::interest(&**self.stream.socket(), self.is_sending())
    }

    pub fn queue(&mut self, words: &[u8]) {
        self.has_sent = true;
        self.unsent.extend_from_slice(words);
    }

    /// Returns whether anything is still to be sent.
    pub fn is_sending(&self) -> bool {
        !self.unsent.is_empty() || self.stream.has_unsent()
    }

    /// Sends the queued bytes, as far as this is possible without blocking.
    ///
    /// # Errors
    /// Returns [`HandshakeError::Broken`] if the connection has failed.
    pub fn flush(&mut self) -> Result<(), HandshakeError> {
        while !self.unsent.is_empty() {
            match self.stream.write(&[IoSlice::new(&self.unsent)]) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return handshake_error(error),
            }
        }
        self.stream.flush().or_else(handshake_error)
    }

    /// Reads the next message without blocking. Returns `None` if it is not complete yet.
    ///
    /// # Errors
    /// - [`HandshakeError::Broken`]: the connection was closed, or has failed.
    /// - [`HandshakeError::Refused`]: the received bytes are not a message of this version of the protocol, or TLS does
    ///   not trust the other side.
    pub fn receive(&mut self) -> Result<Option<Words>, HandshakeError> {
        loop {
            match self.stream.read(self.decoder.buffer()) {
                Ok(0) => return Err(HandshakeError::Broken("it closed its connection".to_owned())),
                Ok(read) => {
                    if let Some(words) = self.decoder.advance(read).map_err(HandshakeError::Refused)? {
                        self.has_received = true;
                        return Ok(Some(words));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return handshake_error(error).map(|()| None),
            }
        }
    }

    /// Discards received bytes and sends what is still queued. Returns `true` if more may be received.
    pub fn discard_received(&mut self) -> bool {
        // The last words may still be on their way.
        let _ = self.flush();
        let mut bytes = [0; 1024];
        discard(|| self.stream.read(&mut bytes))
    }

    /// Checks that the other side, which belongs to the job, may act as this task.
    ///
    /// # Errors
    /// - [`HandshakeError::Broken`]: the connection was closed before the user of the other side was known.
    /// - [`HandshakeError::Refused`]: the other side may not act as this task.
    pub fn verify_peer(&self, access: &Access, task: &Task) -> Result<(), HandshakeError> {
        access.verify_peer(self.stream.socket(), self.stream.certificate(), task).map_err(|doubt| match doubt
        {
            VerifyError::Ended => {
                HandshakeError::Broken("the other side closed it before its user was known".into())
            }
            VerifyError::Refused(refusal) => HandshakeError::Refused(refusal),
        })
    }

    /// Signals to the other side that no more data will be sent.
    pub fn finish(&mut self) {
        let _ = self.flush();
        self.stream.finish();
    }

    /// Returns whether the other side has sent a valid message or hello of TLS.
    pub fn has_begun(&self) -> bool {
        self.has_received || self.stream.has_begun()
    }

    pub fn into_stream(self) -> Stream {
        self.stream
    }
}

/// Calls `read` until no bytes are left, at most 16 times. Returns `false` at the end of the stream or after an error.
fn discard(mut read: impl FnMut() -> io::Result<usize>) -> bool {
    for _ in 0..16 {
        match read() {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

/// Converts an I/O error of the connection. `WouldBlock` becomes `Ok`.
fn handshake_error(error: io::Error) -> Result<(), HandshakeError> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(()),
        // From rustls: a certificate of another CA, or no TLS at all.
        io::ErrorKind::InvalidData => {
            let text = format!(
                "TLS: {error}: give all tasks of the job the same DISTRIBUTE_SECRET, or certificates of one CA"
            );
            Err(HandshakeError::Refused(Refusal::new(Reason::Secret, text)))
        }
        _ => Err(HandshakeError::Broken(crate::link::describe_error(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind::{ConnectionReset, Interrupted, WouldBlock};

    #[test]
    fn an_interrupted_read_is_not_the_end_of_the_stream() {
        let left = |mut reads: Vec<io::Result<usize>>| {
            reads.reverse();
            discard(move || reads.pop().unwrap())
        };
        let failed = |kind: io::ErrorKind| Err(kind.into());
        assert!(left(vec![Ok(7), failed(Interrupted), failed(WouldBlock)]));
        assert!(!left(vec![failed(Interrupted), Ok(0)]));
        assert!(!left(vec![Ok(7), failed(ConnectionReset)]));
        assert!(discard(|| Ok(1)), "there is always more");
    }
}
