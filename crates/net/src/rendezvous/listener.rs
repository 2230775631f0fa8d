//! Where a worker can be reached.

use super::lookup::Lookup;
use crate::identity::{Access, PolicyError};
use crate::poll;
use distribute_cluster::{Address, Deadline};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

/// How long to try for a port that is taken. It is for a moment, where a process takes the place of one that has died: those that
/// try to reach it may have been given its port for their end of the connection.
const TAKEN: Duration = Duration::from_secs(2);

/// How long to wait before the next try.
const AGAIN: Duration = Duration::from_millis(10);

/// The number of connections that may wait to be accepted. Where there is no room, the system of who connects tries again a second
/// later: many strangers at once would keep others out that long.
const QUEUE: i32 = 1024;

/// A socket at which a worker can be reached.
#[derive(Debug)]
pub struct Listener(pub(crate) TcpListener);

impl Listener {
    /// Listens at `host:port`. With port 0 the system chooses one.
    ///
    /// # Errors
    /// Those of the system, among them that the host is unknown and that the address is in use.
    pub fn bind(address: &str) -> io::Result<Self> {
        Self::bind_to(&address.to_socket_addrs()?.collect::<Vec<_>>())
    }

    /// Listens at an address, where connections are protected as they have to be.
    pub(crate) fn open(address: &Address, access: &Access, deadline: Deadline) -> Result<Self, OpenError> {
        let all = Lookup::begin(address)?.wait(deadline)?;
        // A name may mean another address than it says.
        if all.iter().any(|to| !access.allows(to.ip())) {
            let address = address.to_string();
            return Err(OpenError::Policy(PolicyError::PlainTextOnTheNetwork { address }));
        }
        let patience = Deadline::after(deadline.remaining().min(TAKEN));
        loop {
            match Self::bind_to(&all) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && !patience.has_passed() => {
                    let _ = poll::wait(&mut [], AGAIN);
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

    /// Where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Why a task can't listen at its address.
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
