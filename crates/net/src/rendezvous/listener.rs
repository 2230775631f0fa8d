//! Where a worker can be reached.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// A socket at which a worker can be reached.
#[derive(Debug)]
pub struct Listener(pub(super) TcpListener);

impl Listener {
    /// Listens at `host:port`. With port 0 the system chooses one.
    ///
    /// # Errors
    /// Those of the system, among them that the host is unknown and that the address is in use.
    pub fn bind(address: &str) -> io::Result<Self> {
        Self::bind_to(&address.to_socket_addrs()?.collect::<Vec<_>>())
    }

    pub(super) fn bind_to(addresses: &[SocketAddr]) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        listener.set_nonblocking(true)?;
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
