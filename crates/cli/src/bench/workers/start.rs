//! The processes of one round: all are started, all have to end well, and worker 0 says what it measured.

use super::super::program::{PATIENCE, Program};
use super::place::{Order, Place, Work};
use distribute::cluster::{ClusterError, Deadline, World};
use distribute::{Error, Result};
use std::io::Error as IoError;
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// Has so many processes do this work, and gives what worker 0 measured. None of them is left when this returns.
///
/// # Errors
/// [`Error::Io`] with the last line of standard error of a worker that has failed, and if they take minutes.
pub fn measured(workers: usize, work: &Work) -> Result<f64> {
    let io = |source| Error::Io { operation: format!("{workers} processes for {work}"), source };
    let path = std::env::current_exe().map_err(io)?;
    let leader = free_address().map_err(io)?;
    let start = |worker| {
        let world = World::new(workers, worker, 1).map_err(ClusterError::from)?;
        let order = Order { place: Place { world, leader: leader.clone() }, work: work.clone() };
        let mut command = Command::new(&path);
        command.args(["bench", "--child", &order.to_string()]).stderr(Stdio::piped());
        Program::start(&mut command).map_err(io)
    };
    let all = (0..workers).map(start).collect::<Result<Vec<_>>>()?;
    let deadline = Deadline::after(PATIENCE);
    let lines = all.into_iter().map(|program| program.rest(deadline)).collect::<std::io::Result<Vec<_>>>();
    let line = lines.map_err(io)?.into_iter().flatten().next();
    let value = line.as_deref().map(str::parse);
    match value {
        Some(Ok(value)) => Ok(value),
        _ => Err(io(IoError::other(format!("worker 0 has said {line:?}, which is no number")))),
    }
}

/// An address that was free just now. Should somebody else take it before worker 0 does, the round fails and says so.
fn free_address() -> std::io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
