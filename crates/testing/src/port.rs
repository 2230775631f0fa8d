//! Ports for processes that a test starts.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;

/// A port of the loopback interface, reserved until the value is dropped: the system assigns it to no other socket, but
/// a process that asks for this port can listen on it.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    /// The socket, which is bound but never listens.
    _socket: OwnedFd,
}

impl Port {
    /// Reserves a free port.
    pub fn reserve() -> Self {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        // Listeners of std set this as well, so they can be bound to the same port.
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = getsockname(&socket).unwrap().try_into().unwrap();
        Self { address, _socket: socket }
    }

    /// Returns the number of the port.
    pub fn number(&self) -> u16 {
        self.address.port()
    }

    /// Returns the address to listen on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Returns the IPv4 address from which this machine sends to other networks; `None` if it has no route to them.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the system chooses the address from which it would be.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
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
