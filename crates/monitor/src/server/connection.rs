//! A connection to the monitor: one request and one response, each with a deadline.

use super::request::{self, Access, Request};
use super::respond;
use crate::board::Board;
use distribute_cluster::Deadline;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// The maximum time to receive a request, and to send a response.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Receives one request on a connection, sends the response, and shuts down the sending side. Errors of the client are
/// ignored. `has_requested` is called after a valid request has been received completely.
pub(super) fn serve(stream: &TcpStream, board: &Board, access: Access, has_requested: &dyn Fn()) {
    let deadline = Deadline::after(TIMEOUT);
    let answer = match read(stream, &deadline, access) {
        Ok(Request::Of { resource, body }) => {
            has_requested();
            respond::answer(resource, body, || board.report())
        }
        Ok(Request::Refused { code, why }) => respond::refusal(code, why),
        Ok(Request::Partial) => respond::refusal(408, "the request was not complete in time"),
        Err(_) => return,
    };
    if write(stream, &answer, &Deadline::after(TIMEOUT)).is_ok() {
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// Reads until the request is complete or must be rejected. Returns [`Request::Partial`] if the deadline passes before
/// that.
fn read(mut stream: &TcpStream, deadline: &Deadline, access: Access) -> io::Result<Request> {
    stream.set_nonblocking(false)?;
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        let Some(left) = left(deadline) else { return Ok(Request::Partial) };
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(part.get(..count).unwrap_or_default());
        match request::read(&bytes, access) {
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
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the remaining time, or `None` if it is too short for a timeout of the operating system.
fn left(deadline: &Deadline) -> Option<Duration> {
    Some(deadline.remaining()).filter(|left| *left >= Duration::from_millis(1))
}

/// Returns `true` if an error only means that the timeout has passed or that a signal has arrived.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
