//! A connection: a request, a response, and the end, each within a deadline.

use super::request::{self, Request};
use super::respond;
use crate::board::Board;
use distribute_cluster::Deadline;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// The time for receiving a request, and for sending a response.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a connection. The client cannot affect the job. `asked` is called when the request is complete.
pub(super) fn serve(stream: &TcpStream, board: &Board, network: bool, asked: &dyn Fn()) {
    let deadline = Deadline::after(TIMEOUT);
    let answer = match read(stream, &deadline, network) {
        Ok(Request::Of { asked: page, body }) => {
            asked();
            respond::answer(page, body, || board.report())
        }
        Ok(Request::Refused { code, why }) => respond::refusal(code, why),
        Ok(Request::Partial) => respond::refusal(408, "the request did not come to its end in time"),
        Err(_) => return,
    };
    if write(stream, &answer, &Deadline::after(TIMEOUT)).is_ok() {
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// Reads until the request is complete, or until the deadline.
fn read(mut stream: &TcpStream, deadline: &Deadline, network: bool) -> io::Result<Request> {
    stream.set_nonblocking(false)?;
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        let Some(left) = left(deadline) else { return Ok(Request::Partial) };
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if goes_on(&error) => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(part.get(..count).unwrap_or_default());
        match request::read(&bytes, network) {
            Request::Partial => {}
            whole => return Ok(whole),
        }
    }
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], deadline: &Deadline) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = left(deadline).ok_or(io::ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if goes_on(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the remaining time, unless it is too short for a timeout of the system.
fn left(deadline: &Deadline) -> Option<Duration> {
    Some(deadline.remaining()).filter(|left| *left >= Duration::from_millis(1))
}

/// Whether an error only means that the time is up, or that a signal arrived.
fn goes_on(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
