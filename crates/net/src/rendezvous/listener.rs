//! The socket at which a worker listens for others.

use super::lookup::Lookup;
use crate::identity::{Access, PolicyError};
use crate::poll;
use distribute_cluster::{Address, Deadline};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

/// The maximum time for which binding is retried if a port is in use. The port of a failed process may be in use for a
/// short time, because the system may assign it to a worker's attempt to reach that process.
const RETRY_BIND: Duration = Duration::from_secs(2);

/// The wait between two attempts to bind.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The maximum number of connections that wait to be accepted. If the queue is full, a caller's operating system
/// retries only a second later. A long queue keeps a flood of foreign connections from delaying others.
const QUEUE: i32 = 1024;

/// A listening socket at which other workers reach this one.
#[derive(Debug)]
pub struct Listener(pub(crate) TcpListener);

impl Listener {
    /// Listens at `host:port`. With port 0 the system chooses a port.
    ///
    /// # Errors
    /// Returns an I/O error, for example if the host is unknown or the address is in use.
    pub fn bind(address: &str) -> io::Result<Self> {
        Self::bind_to(&address.to_socket_addrs()?.collect::<Vec<_>>())
    }

    /// Listens at an address, provided that connections there have the required protection. The lookup of a host name
    /// ends at `deadline`. If the port is in use, binding is retried for a short time.
    ///
    /// # Errors
    /// - [`OpenError::Policy`]: connections would be unprotected.
    /// - [`OpenError::System`]: the host is unknown, its lookup takes too long, or the address cannot be used.
    pub(crate) fn open(address: &Address, access: &Access, deadline: Deadline) -> Result<Self, OpenError> {
        let all = Lookup::begin(address)?.wait(deadline)?;
        // A host name may resolve to an address of a different kind than it suggests.
        if all.iter().any(|to| !access.allows(to.ip())) {
            let address = address.to_string();
            return Err(OpenError::Policy(PolicyError::PlainTextOnTheNetwork { address }));
        }
        let patience = Deadline::after(deadline.remaining().min(RETRY_BIND));
        loop {
            match Self::bind_to(&all) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && !patience.has_passed() => {
                    let _ = poll::wait(&mut [], RETRY_PAUSE);
                }
                bound => return Ok(bound?),
            }
        }
    }

    fn bind_to(addresses: &[SocketAddr]) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, QUEUE)?;
        Ok(Self(listener))
    }

    /// Returns the address at which this socket listens.
    ///
    /// # Errors
    /// Returns an I/O error if the socket has no address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// An error that prevents a task from listening at its address.
#[derive(Debug)]
pub(crate) enum OpenError {
    Policy(PolicyError),
    System(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        OpenError::System(error)
    }
}
