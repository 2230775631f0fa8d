//! The HTTP server of a job's status.
//!
//! | path | contents |
//! |---|---|
//! | `/` | the page |
//! | `/status.json` | the report, as JSON |
//! | `/metrics` | the report, in Prometheus' text format |

mod connection;
mod lobby;
mod request;
mod respond;

use crate::board::Board;
use crate::{Error, Result, Source};
use distribute_cluster::Stopwatch;
use distribute_log::{Repeats, heard};
use lobby::Lobby;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The maximum number of connections. A further one replaces the oldest, preferring one without a request.
pub(crate) const CONNECTIONS: usize = 16;

/// The interval in which the thread that accepts connections checks for shutdown.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The interval between two warnings about refused connections.
const FAILURES: Duration = Duration::from_secs(10);

/// A server that shows the status of a job until it is dropped.
#[must_use = "dropped, nobody can watch the job"]
pub struct Server {
    address: SocketAddr,
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves the reports of `source` at this address.
    ///
    /// An address that other machines can reach requires `network`. Any machine that reaches it can read the
    /// status of the job, and nothing is encrypted.
    ///
    /// # Errors
    /// - [`Error::Listen`]: the address cannot be listened on.
    /// - [`Error::Network`]: other machines can reach the address, and `network` is false.
    /// - [`Error::Thread`]: the system refuses a thread.
    pub fn start(address: &str, network: bool, source: impl Source) -> Result<Self> {
        let failed = |source| Error::Listen { address: address.into(), source };
        let all: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        if !network && !all.iter().all(|address| address.ip().is_loopback()) {
            return Err(Error::Network { address: address.into() });
        }
        let listener = TcpListener::bind(&*all).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut server = Self { address, board: Arc::new(Board::new()), threads: Vec::new() };
        let board = server.board.clone();
        server.thread("monitor", move || board.follow(source))?;
        let board = server.board.clone();
        server.thread("monitor-http", move || serve(&listener, &board, network))?;
        Ok(server)
    }

    /// Returns the address, with the selected port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the latest report.
    pub fn report(&self) -> crate::Report {
        self.board.report()
    }

    fn thread(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let started =
            Builder::new().name(name.into()).spawn(work).map_err(|source| Error::Thread { source })?;
        self.threads.push(started);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.board.end();
        // The first thread may be in the source, so it is not joined. The other one exits at its next check,
        // which frees the port.
        for thread in self.threads.drain(..).skip(1) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Accepts connections until shutdown, and starts a thread for each.
fn serve(listener: &TcpListener, board: &Arc<Board>, network: bool) {
    let lobby = Lobby::new(CONNECTIONS);
    let (mut failures, began) = (Repeats::new(FAILURES), Stopwatch::start());
    while !board.is_over() {
        for ((), count) in failures.due(began.elapsed()) {
            let seconds = FAILURES.as_secs();
            heard(|| tracing::warn!("the monitor had no thread for {count} more within {seconds} s"));
        }
        match listener.accept() {
            Ok((stream, from)) => {
                let stream = Arc::new(stream);
                let Some(seat) = lobby.enter(&stream, from.ip()) else {
                    refuse(&stream);
                    continue;
                };
                let board = board.clone();
                let served = Builder::new().name("monitor-client".into()).spawn(move || {
                    connection::serve(&stream, &board, network, &|| seat.has_asked());
                });
                if let Err(error) = served
                    && failures.come((), began.elapsed())
                {
                    heard(|| tracing::warn!("the monitor has no thread for who asks: {error}"));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // There is no connection, or the system has no sockets left.
            Err(_) => {
                let mut sockets = [PollFd::new(&listener, PollFlags::IN)];
                let _ = poll(&mut sockets, Some(&LOOK));
            }
        }
    }
}

/// Refuses a connection because there are too many. Sends a response only if that does not block.
fn refuse(stream: &TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = std::io::Write::write(&mut &*stream, &respond::busy());
    }
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests;
