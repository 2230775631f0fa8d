//! The HTTP server of a job's status.
//!
//! | path | contents |
//! |---|---|
//! | `/` | the page |
//! | `/status.json` | the report, as JSON |
//! | `/metrics` | the report, in Prometheus' text format |
//! | `/healthz` | 200 if the process is alive; otherwise 503 |
//! | `/readyz` | 200 if the report is recent and no worker is lost or, with a coordinator, a worker is left; otherwise 503 |
//!
//! | module | contents |
//! |---|---|
//! | `connections` | the connections, and the one that is closed for a new one |
//! | `connection` | a connection: request, response and end, each within a deadline |
//! | `request`, `respond` | HTTP as bytes: pure |

mod connection;
mod connections;
mod request;
mod respond;

use crate::board::Board;
use crate::{Error, Result, Source};
use connections::Connections;
use distribute_cluster::Stopwatch;
use distribute_log::{Repeats, warn_or_stderr};
use request::Access;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The maximum number of connections to one address. A further connection replaces the oldest one of the client with
/// the most connections: among those without a request if they take more than half of the places, and otherwise among
/// the others.
pub(crate) const CONNECTIONS: usize = 16;

/// The interval at which the thread that accepts connections checks for shutdown.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The minimum interval between two warnings about rejected connections.
const FAILURES: Duration = Duration::from_secs(10);

/// A server that shows the status of a job until it is dropped.
#[must_use = "the monitor stops when this is dropped"]
pub struct Server {
    /// The address of the first listener.
    address: SocketAddr,
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that serves the reports of `source` at `address`. If other machines can reach the address,
    /// `network` must be `true`. Every machine that can connect can read the status of the job, and nothing is
    /// encrypted.
    ///
    /// # Errors
    /// - [`Error::Listen`]: the server cannot listen on the address.
    /// - [`Error::Network`]: the address can be reached from other machines, and `network` is `false`.
    /// - [`Error::Thread`]: a thread cannot be started.
    pub fn start(address: &str, network: bool, source: impl Source) -> Result<Self> {
        Self::open(address, if network { Access::Network } else { Access::Local }, source)
    }

    /// Starts a server that serves only `/healthz` and `/readyz` at `address`, to every machine that can connect. The
    /// responses contain no names or numbers of the job, except the age of its latest report, the number of its
    /// workers, and how many of them are lost.
    ///
    /// # Errors
    /// - [`Error::Listen`]: the server cannot listen on the address.
    /// - [`Error::Thread`]: a thread cannot be started.
    pub fn start_health(address: &str, source: impl Source) -> Result<Self> {
        Self::open(address, Access::Health, source)
    }

    /// Additionally serves `/healthz` and `/readyz` at another address, like [`start_health`](Self::start_health).
    /// Returns this address. If port 0 was requested, it has the port that the system has selected.
    ///
    /// # Errors
    /// Returns the errors of [`start_health`](Self::start_health).
    pub fn add_health(&mut self, address: &str) -> Result<SocketAddr> {
        let (listener, bound) = listen(address, Access::Health)?;
        self.serve(listener, Access::Health)?;
        Ok(bound)
    }

    fn open(address: &str, access: Access, source: impl Source) -> Result<Self> {
        let (listener, address) = listen(address, access)?;
        let mut server = Self { address, board: Arc::new(Board::new()), threads: Vec::new() };
        let board = server.board.clone();
        server.thread("monitor", move || board.follow(source))?;
        server.serve(listener, access)?;
        Ok(server)
    }

    /// Starts the thread that accepts connections on a listener.
    fn serve(&mut self, listener: TcpListener, access: Access) -> Result<()> {
        let board = self.board.clone();
        self.thread("monitor-http", move || serve(&listener, &board, access))
    }

    /// Returns the address of the server. If port 0 was requested, it has the port that the system has selected.
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
        // The first thread may be in the source, so it is not joined. The others exit at their next check, which
        // frees the ports.
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

/// Binds a listener, and returns it with its address.
///
/// # Errors
/// - [`Error::Listen`]: the listener cannot be bound.
/// - [`Error::Network`]: `access` is local, but the address can be reached from other machines.
fn listen(address: &str, access: Access) -> Result<(TcpListener, SocketAddr)> {
    let failed = |source| Error::Listen { address: address.into(), source };
    let all: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
    if access == Access::Local && !all.iter().all(|address| address.ip().is_loopback()) {
        return Err(Error::Network { address: address.into() });
    }
    let listener = TcpListener::bind(&*all).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Accepts connections until the monitor shuts down, and starts a thread for each. Rejects a connection if all threads
/// are busy.
fn serve(listener: &TcpListener, board: &Arc<Board>, access: Access) {
    let connections = Connections::new(CONNECTIONS);
    let (mut failures, began) = (Repeats::new(FAILURES), Stopwatch::start());
    while !board.is_over() {
        for ((), count) in failures.due(began.elapsed()) {
            let seconds = FAILURES.as_secs();
            warn_or_stderr(|| {
                tracing::warn!(
                    "the monitor could not start threads for {count} more \
                     connections within {seconds} s"
                )
            });
        }
        match listener.accept() {
            Ok((stream, from)) => {
                let stream = Arc::new(stream);
                let Some(connection) = connections.enter(&stream, from.ip()) else {
                    refuse(&stream);
                    continue;
                };
                let board = board.clone();
                let served = Builder::new().name("monitor-client".into()).spawn(move || {
                    connection::serve(&stream, &board, access, &|| connection.has_requested());
                });
                if let Err(error) = served
                    && failures.record((), began.elapsed())
                {
                    warn_or_stderr(|| {
                        tracing::warn!("the monitor cannot start a thread for a connection: {error}")
                    });
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                let mut sockets = [PollFd::new(&listener, PollFlags::IN)];
                // If the system has no sockets left, the listener would be ready again at once.
                let is_idle = error.kind() == std::io::ErrorKind::WouldBlock;
                let awaited: &mut [PollFd<'_>] = if is_idle { &mut sockets } else { &mut [] };
                let _ = poll(awaited, Some(&CHECK_INTERVAL));
            }
        }
    }
}

/// Rejects a connection because there are too many. Sends a response only if that does not block.
fn refuse(stream: &TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = std::io::Write::write(&mut &*stream, &respond::busy());
    }
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests;
