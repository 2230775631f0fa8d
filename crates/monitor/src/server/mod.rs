//! Serves what a job does over HTTP.
//!
//! | path | what it is |
//! |---|---|
//! | `/` | the page |
//! | `/status.json` | the report, as JSON |
//! | `/metrics` | the report, in Prometheus' text format |

mod connection;
mod request;
mod respond;

use crate::board::Board;
use crate::{Error, Result, Source};
use distribute_log::heard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

/// How many connections are served at once. Others are refused.
pub(crate) const CONNECTIONS: usize = 16;

/// How often the thread that accepts connections looks whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A job that is watched, until this is dropped.
#[must_use = "dropped, nobody can watch the job"]
pub struct Server {
    address: SocketAddr,
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves what `source` says at this address. One that other machines reach has to be asked for by `network`: whoever reaches it can read what
    /// the job does, and nothing is encrypted.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::Network`], [`Error::Thread`].
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

    /// Where it is served, with the port that was free if any was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The latest report.
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
        // That of the source may be in it, and is left alone; the other one ends at its next look, and the port is free then.
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

/// Accepts connections, each of which has a thread, until the end.
fn serve(listener: &TcpListener, board: &Arc<Board>, network: bool) {
    let open = Arc::new(AtomicUsize::new(0));
    while !board.is_over() {
        match listener.accept() {
            Ok((stream, _)) => {
                if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
                    refuse(&stream);
                    open.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                let (board, open_too) = (board.clone(), Closed(open.clone()));
                let served = Builder::new().name("monitor-client".into()).spawn(move || {
                    let _closed = open_too;
                    connection::serve(stream, &board, network);
                });
                if let Err(error) = served {
                    heard(|| tracing::warn!("the monitor has no thread for who asks: {error}"));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Nobody is there, or the system has no sockets left for now.
            Err(_) => {
                let mut sockets = [PollFd::new(&listener, PollFlags::IN)];
                let _ = poll(&mut sockets, Some(&LOOK));
            }
        }
    }
}

/// Counts a connection out, also where its thread was refused.
struct Closed(Arc<AtomicUsize>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Too many are there: says so, if that needs no wait.
fn refuse(stream: &TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = std::io::Write::write(&mut &*stream, &respond::busy());
    }
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests;
