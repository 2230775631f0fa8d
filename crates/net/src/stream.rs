//! A non-blocking connection, in plain text or TLS, optionally with shared memory.

use crate::identity::tls::{Certificate, Session};
use crate::shm::pair::Pair;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// A non-blocking connection: an operation that would block fails with [`WouldBlock`](io::ErrorKind::WouldBlock).
///
/// If two workers share memory, all bytes are sent through it. The socket then only carries bytes that wake the other
/// side, and its end shows that the other side has exited.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Arc<TcpStream>,
    tls: Option<Box<Session>>,
    pair: Option<Arc<Pair>>,
    /// The end or the error of the socket, while shared memory still contains bytes that were written before it.
    ended: Option<io::Result<()>>,
}

impl Stream {
    /// Creates a connection in plain text, and makes the socket non-blocking.
    pub fn plain(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: Arc::new(socket), tls: None, pair: None, ended: None })
    }

    /// Creates a connection in TLS, and makes the socket non-blocking. The TLS handshake takes place during reads and
    /// writes.
    pub fn tls(socket: TcpStream, session: Session) -> io::Result<Self> {
        Ok(Self { tls: Some(Box::new(session)), ..Self::plain(socket)? })
    }

    /// Sends all further bytes through shared memory if `pair` is given. Both sides must call this at the same point.
    pub fn with_shared_memory(mut self, pair: Option<Arc<Pair>>) -> Self {
        self.pair = pair;
        self
    }

    /// Returns the memory that is shared with the other side; `None` if bytes go through the socket.
    pub fn pair(&self) -> Option<&Arc<Pair>> {
        self.pair.as_ref()
    }

    /// Returns the socket, so that the caller can wait for it.
    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Returns the certificate of the other side, if TLS has verified it.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.tls.as_ref()?.certificate()
    }

    /// Reads received bytes without blocking. Returns the number of bytes, or 0 at the end of the stream.
    ///
    /// # Errors
    /// Returns an I/O error: of the kind [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing was received,
    /// [`Interrupted`](io::ErrorKind::Interrupted) if the call can be repeated, and another one if the connection has
    /// failed.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(pair) = &self.pair else { return self.receive(into) };
        let mut read = pair.read(into).map_err(io::Error::other)?;
        if read == 0 && self.ended.is_none() && pair.take_socket_event() {
            let pair = pair.clone();
            read = self.look_again(&pair, into)?;
        }
        if read == 0 {
            // A short message that was sent before the end must be delivered first.
            if self.pair.as_ref().is_some_and(|pair| pair.has_short()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            return match self.ended.take() {
                Some(ended) => ended.map(|()| 0),
                None => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        if self.pair.as_ref().is_some_and(|pair| pair.must_notify_room()) {
            self.wake()?;
        }
        Ok(read)
    }

    /// Checks the socket after the ring was found empty, and then reads the ring again. The other side may have written
    /// bytes in between, before the wake-up byte or the end of the stream.
    fn look_again(&mut self, pair: &Pair, into: &mut [u8]) -> io::Result<usize> {
        let mut bytes = [0; 64];
        self.ended = loop {
            match self.receive(&mut bytes) {
                Ok(0) => break Some(Ok(())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(Err(error)),
            }
        };
        pair.record_wake();
        let read = pair.read(into).map_err(io::Error::other)?;
        if self.ended.is_some() {
            pair.mark_socket_event();
        }
        Ok(read)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => (&*self.socket).read(into),
            Some(tls) => tls.read(&self.socket, into),
        }
    }

    /// Returns whether there are bytes to read that a wait for the socket would miss.
    pub fn has_unread(&self) -> bool {
        self.pair.is_none() && self.tls.as_ref().is_some_and(|tls| tls.has_unread())
    }

    /// Writes without blocking, and returns the number of written bytes. With TLS, some of them may have to be
    /// [flushed](Self::flush) later.
    ///
    /// # Errors
    /// Returns an I/O error: of the kind [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing can be written now,
    /// [`Interrupted`](io::ErrorKind::Interrupted) if the call can be repeated, and another one if the connection has
    /// failed.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(pair) = &self.pair else { return self.transmit(slices) };
        let written = pair.write(slices).map_err(io::Error::other)?;
        if written == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if pair.must_wake() {
            self.wake()?;
        }
        Ok(written)
    }

    /// Sends a byte that wakes the other side. Never returns an error.
    pub fn wake(&mut self) -> io::Result<()> {
        match self.transmit(&[IoSlice::new(&[1])]) {
            Ok(_) => Ok(()),
            // After other errors, no byte is needed: either the socket is full of such bytes, or it is closed, which
            // the reader detects.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.wake(),
            Err(_) => Ok(()),
        }
    }

    fn transmit(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.tls {
            None => (&*self.socket).write_vectored(slices),
            Some(tls) => tls.write(&self.socket, slices),
        }
    }

    /// Returns whether written bytes have not been passed to the system yet.
    pub fn has_unsent(&self) -> bool {
        self.pair.is_none() && self.tls.as_ref().is_some_and(|tls| tls.has_unsent())
    }

    /// Returns whether a hello of TLS was received, with a version that this side supports.
    pub fn has_begun(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_begun())
    }

    /// Passes written bytes to the system without blocking.
    ///
    /// # Errors
    /// Returns an I/O error: of the kind [`WouldBlock`](io::ErrorKind::WouldBlock) if bytes are left, and another one
    /// if the connection has failed.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => tls.flush(&self.socket),
        }
    }

    /// Signals to the other side that no more data will be sent.
    pub fn finish(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.finish(&self.socket);
        }
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Closes the connection in both directions.
    pub fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll;
    use crate::shm::pair::tests::pair;
    use std::net::TcpListener;
    use std::time::Duration;

    #[test]
    fn bytes_written_between_polls_of_ring_and_socket_precede_the_end() {
        let (mine, theirs) = pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let mut stream = Stream::plain(socket).unwrap().with_shared_memory(Some(mine.clone()));
        let mut into = [0; 10];
        // The first check finds nothing.
        assert_eq!(stream.read(&mut into).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // After that, the other side writes its last bytes and closes.
        assert_eq!(theirs.write(&[IoSlice::new(b"last")]).unwrap(), 4);
        drop(other);
        let mut sockets = [poll::interest(&*stream.socket, false)];
        poll::wait(&mut sockets, Duration::from_secs(20)).unwrap();
        assert!(poll::is_ready(&sockets[0]));
        // The check of the socket comes last, and finds the end.
        assert_eq!(stream.look_again(&mine, &mut into).unwrap(), 4);
        assert_eq!(&into[..4], b"last");
        assert_eq!(stream.read(&mut into).unwrap(), 0);
    }
}
