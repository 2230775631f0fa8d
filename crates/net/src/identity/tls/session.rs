//! [`Session`]: the bytes of a connection in TLS.

use super::Certificate;
use rustls::Connection;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

/// The size in bytes of the buffer for received ciphertext.
const STAGED: usize = 64 << 10;

/// The maximum number of unsent bytes that rustls buffers.
const UNSENT: usize = 256 << 10;

/// One side of a TLS connection.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Connection,
    /// Received bytes that rustls has not processed yet: `from..to`.
    staged: Box<[u8]>,
    from: usize,
    to: usize,
    /// The number of decrypted bytes that have not been read yet.
    plain: usize,
}

impl Session {
    pub(super) fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(UNSENT));
        Self { connection, staged: vec![0; STAGED].into_boxed_slice(), from: 0, to: 0, plain: 0 }
    }

    /// Returns the certificate of the other side after the handshake; `None` before.
    pub(crate) fn certificate(&self) -> Option<&Certificate> {
        self.connection.peer_certificates()?.first()
    }

    /// Returns whether there are bytes to read that a wait for the socket would miss.
    pub(crate) fn has_unread(&self) -> bool {
        self.plain > 0 || self.from < self.to
    }

    /// Returns whether written bytes have not been passed to the system yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Returns whether a hello of the other side was received, with a version that this side supports.
    pub(crate) fn has_begun(&self) -> bool {
        self.connection.protocol_version().is_some()
    }

    /// Signals to the other side that no more data will be sent.
    pub(crate) fn finish(&mut self, socket: &TcpStream) {
        self.connection.send_close_notify();
        let _ = self.flush(socket);
    }

    pub(crate) fn read(&mut self, socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(into) {
                Ok(read) => {
                    self.plain = self.plain.saturating_sub(read);
                    return Ok(read);
                }
                // The socket was closed without the end of TLS. The frames show whether the end was graceful.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.from == self.to {
                self.to = (&*socket).read(&mut self.staged)?;
                self.from = 0;
            }
            // An empty read signals the end to rustls.
            let taken = self.connection.read_tls(&mut &self.staged[self.from..self.to])?;
            let ended = self.from == self.to;
            self.from += taken;
            match self.connection.process_new_packets() {
                Ok(state) => self.plain = state.plaintext_bytes_to_read(),
                Err(error) => {
                    // The alert reports the error to the other side.
                    let _ = self.flush(socket);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
            if self.connection.wants_write() {
                match self.flush(socket) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
            }
            if ended && self.connection.is_handshaking() {
                return Ok(0);
            }
        }
    }

    pub(crate) fn write(&mut self, socket: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut written = self.connection.writer().write_vectored(slices)?;
        if written == 0 {
            self.flush(socket)?;
            written = self.connection.writer().write_vectored(slices)?;
        }
        match self.flush(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            // During the handshake, rustls accepts no more bytes until the other side has answered.
            _ if written == 0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(written),
        }
    }

    pub(crate) fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut socket)?;
        }
        Ok(())
    }
}
