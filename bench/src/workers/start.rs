//! The processes of one round. All are started and must succeed, and worker 0 prints the measurement.

use super::place::{Order, Place, Work};
use crate::hosts::Hosts;
use crate::program::{PATIENCE, Program};
use crate::sample::Sample;
use distribute::cluster::{Deadline, World};
use distribute::{Error, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::io::Error as IoError;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// The port of worker 0 on its host. No other process listens on it.
const PORT: u16 = 2222;

/// Runs the work in `workers` processes of this machine, and returns the measurement of worker 0. When this returns,
/// all processes have exited.
///
/// # Errors
/// - [`Error::Io`]: a worker failed, or the processes take minutes. The error contains the last line of a failed
///   worker's standard error.
pub fn measured(workers: usize, work: &Work) -> Result<Sample> {
    let io = |source| Error::Io { operation: format!("{workers} processes for {work}"), source };
    let mut addresses = vec!["127.0.0.1:0".to_string(); workers];
    let (address, _reserved) = reserve().map_err(io)?;
    if let Some(leader) = addresses.first_mut() {
        *leader = address;
    }
    let program = std::env::current_exe().map_err(io)?;
    let all = addresses.iter().map(|_| Command::new(&program)).collect();
    round(&addresses, all, work).map_err(io)
}

/// Runs the work in one process on each of two hosts.
///
/// # Errors
/// Returns the errors of [`measured`].
pub fn measured_between(hosts: &Hosts, work: &Work) -> Result<Sample> {
    let io = |source| Error::Io { operation: format!("{hosts} for {work}"), source };
    let addresses: Vec<_> = hosts.all().map(|host| format!("{}:{PORT}", host.address())).collect();
    let program = std::env::current_exe().map_err(io)?;
    let all = hosts.all().map(|host| host.command(&program)).collect();
    round(&addresses, all, work).map_err(io)
}

/// Runs a round. The workers have the given addresses, and are started with the given commands.
fn round(addresses: &[String], commands: Vec<Command>, work: &Work) -> std::io::Result<Sample> {
    let start = |(worker, mut command): (usize, Command)| {
        let world = World::new(addresses.len(), worker, 1).map_err(IoError::other)?;
        let order = Order { place: Place { world, addresses: addresses.to_vec() }, work: work.clone() };
        command.args(["--child", &order.to_string()]).stderr(Stdio::piped());
        Program::start(&mut command)
    };
    let all = commands.into_iter().enumerate().map(start).collect::<std::io::Result<Vec<_>>>()?;
    let deadline = Deadline::after(PATIENCE);
    let lines = all.into_iter().map(|program| program.rest(deadline)).collect::<std::io::Result<Vec<_>>>()?;
    let line = lines.into_iter().flatten().next().unwrap_or_default();
    let sample = serde_json::from_str(&line).ok().and_then(|said| Sample::said(&said));
    sample.ok_or_else(|| IoError::other(format!("worker 0 has said {line:?}, which is no sample")))
}

/// Reserves an address. While the socket is open, the system does not assign the address to other processes, but a
/// process that requests it can listen on it.
fn reserve() -> std::io::Result<(String, OwnedFd)> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    Ok((SocketAddr::try_from(getsockname(&socket)?)?.to_string(), socket))
}
