//! Sockets that child processes do not inherit.

use rustix::fd::OwnedFd;
use rustix::io;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Creates a TCP socket that is closed when this process starts another program.
#[cfg(not(target_vendor = "apple"))]
pub fn stream(family: AddressFamily) -> io::Result<OwnedFd> {
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Creates a TCP socket that is closed when this process starts another program. Apple's systems have no flag for this,
/// so a program that another thread starts at this moment may inherit the socket.
#[cfg(target_vendor = "apple")]
pub fn stream(family: AddressFamily) -> io::Result<OwnedFd> {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::empty(), None)?;
    io::fcntl_setfd(&socket, io::FdFlags::CLOEXEC)?;
    Ok(socket)
}
