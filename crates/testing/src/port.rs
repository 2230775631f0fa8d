//! Ports for processes that a test starts.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// A port of the loopback interface, which the system gives to nobody who asks for any, for as long as this is held. A process that asks
/// for this one can listen there.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    /// Bound, and never listening.
    _socket: OwnedFd,
}

impl Port {
    /// A free one.
    pub fn reserve() -> Self {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        // As listeners of std do: then they can be bound beside it.
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = getsockname(&socket).unwrap().try_into().unwrap();
        Self { address, _socket: socket }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.address.port()
    }

    /// Where to listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn who_asks_for_it_can_listen_there() {
        let port = Port::reserve();
        let listener = TcpListener::bind(port.address()).unwrap();
        drop(TcpStream::connect(port.address()).unwrap());
        drop(listener);
        TcpListener::bind(port.address()).unwrap();
        assert_ne!(Port::reserve().number(), port.number());
    }
}
