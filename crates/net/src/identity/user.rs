//! A check of which user's process is at the other end of a loopback connection.
//!
//! Linux lists all connections in a table, with the user that has opened each end. A loopback connection has a row for
//! each of its two ends. The other end is the row with the two addresses swapped. While this end is open, no other
//! connection can have that row. A closed end has no user in the table, so it counts as a closed connection.
//!
//! To test whether the system reports users, this process connects to itself.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The tables of both address families. One end of a connection may be in the table of IPv6 and the other in that of
/// IPv4.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// The code of an open connection in the table's column of states.
const ESTABLISHED: &str = "01";

/// The number of attempts to find a row. A table that changes during the read may miss a row.
const MAX_READS: usize = 3;

/// The timeout of this process's connection to itself.
const CONNECT: Duration = Duration::from_secs(5);

/// The maximum number of connections to accept in order to find this process's own.
const CALLERS: usize = 256;

/// Returns whether this system reports the user at the other end of a connection.
pub(super) fn is_supported() -> bool {
    static SUPPORTED: AtomicBool = AtomicBool::new(false);
    if SUPPORTED.load(Ordering::Relaxed) {
        return true;
    }
    let told = probe().unwrap_or(false);
    if told {
        SUPPORTED.store(true, Ordering::Relaxed);
    } else {
        tracing::debug!(
            "this system does not report which user's process is at the other end of a connection"
        );
    }
    told
}

/// Connects this process to itself, and returns whether the system reports that the other end belongs to this user.
/// Returns `None` if the connection cannot be made.
fn probe() -> Option<bool> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let caller = TcpStream::connect_timeout(&listener.local_addr().ok()?, CONNECT).ok()?;
    let address = caller.local_addr().ok()?;
    // Other processes can connect to this port before this process does.
    let mut accepted = (0..CALLERS).map_while(|_| listener.accept().ok());
    let (called, _) = accepted.find(|(_, from)| *from == address)?;
    Some(check(&called).is_ok())
}

/// The reason why the other end of a connection is not known to belong to this user.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UserCheckError {
    /// The other end is closed, for example because its process was killed.
    Closed,
    /// The other end belongs to a different user. The text contains that user's number and a remedy.
    Other(String),
}

/// Checks that the other end of a loopback connection is a process of this user. A connection from another machine is
/// not checked.
///
/// # Errors
/// - [`UserCheckError::Closed`]: the other end is closed, or is not in the system's table.
/// - [`UserCheckError::Other`]: the process belongs to a different user.
pub(super) fn check(socket: &TcpStream) -> Result<(), UserCheckError> {
    let (Ok(here), Ok(there)) = (socket.local_addr(), socket.peer_addr()) else {
        return Err(UserCheckError::Closed);
    };
    if !there.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let mine = rustix::process::geteuid().as_raw();
    match (0..MAX_READS).find_map(|_| look_up(there, here)) {
        Some(user) if user == mine => Ok(()),
        Some(user) => Err(UserCheckError::Other(format!(
            "it is a process of the user with the number {user}, but without a secret only processes of \
             one user, here {mine}, can participate: give all tasks of the job the same DISTRIBUTE_SECRET, \
             as `distribute launch` does"
        ))),
        None => Err(UserCheckError::Closed),
    }
}

/// Returns the user that has opened the end at `this` of a connection to `other`; `None` if no table contains that end,
/// or if it is closed.
fn look_up(this: SocketAddr, other: SocketAddr) -> Option<u32> {
    TABLES.iter().find_map(|table| {
        let lines = BufReader::new(std::fs::File::open(table).ok()?).lines();
        find(lines.map_while(Result::ok), this, other)
    })
}

/// Returns the user in the row of the open end at `this` of a connection to `other`; `None` if there is no such row.
fn find(mut rows: impl Iterator<Item = String>, this: SocketAddr, other: SocketAddr) -> Option<u32> {
    rows.find_map(|row| {
        let mut fields = row.split_ascii_whitespace().skip(1);
        let is_this =
            address(fields.next()?)? == canonical(this) && address(fields.next()?)? == canonical(other);
        if !is_this || fields.next()? != ESTABLISHED {
            return None;
        }
        let (user, _timeout, inode) = (fields.nth(3)?, fields.next()?, fields.next()?);
        // An end without a process, before it is accepted or after it was closed, has inode 0 and belongs to
        // root.
        if inode == "0" { None } else { user.parse().ok() }
    })
}

fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// Parses an address of the table: the IP address, as 32-bit hexadecimal numbers in the machine's byte order, and the
/// port. Returns `None` if the text has a different form.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = ip.get(8 * at..8 * at + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            bytes.as_chunks_mut::<4>().0.copy_from_slice(&words);
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some((ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_user_of_the_other_end_is_in_the_row_with_both_addresses_the_other_way_round() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 11 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1
   2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 02:000A 00000000  1001        0 13 1 0 20 4 30 10 -1
   3: 0100007F:C351 0100007F:1F90 05 00000000:00000000 00:00000000 00000000  1002        0 14 1 0
   4: 0100007F:C352 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0
   5: 0000000000000000FFFF00000100007F:C353 0000000000000000FFFF00000100007F:1F90 01 0:0 00:0 0 1003 0 15 1
   6: 00000000000000000000000001000000:C354 00000000000000000000000001000000:1F90 01 0:0 00:0 0 1004 0 16 1
   7: rubbish
";
        let of = |this: &str, other: &str| {
            find(table.lines().map(str::to_owned), this.parse().unwrap(), other.parse().unwrap())
        };
        assert_eq!(of("127.0.0.1:50000", "127.0.0.1:8080"), Some(1001));
        assert_eq!(of("127.0.0.1:8080", "127.0.0.1:50000"), Some(0));
        // Ends that are closing, ends without a process, and missing ends.
        assert_eq!(of("127.0.0.1:50001", "127.0.0.1:8080"), None);
        assert_eq!(of("127.0.0.1:50002", "127.0.0.1:8080"), None);
        assert_eq!(of("127.0.0.1:8080", "127.0.0.1:1"), None);
        // An IPv4 address of an IPv6 socket, and an IPv6 address.
        assert_eq!(of("127.0.0.1:50003", "127.0.0.1:8080"), Some(1003));
        assert_eq!(of("[::1]:50004", "[::1]:8080"), Some(1004));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn processes_of_this_user_are_recognized_and_a_closed_socket_is_refused() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let to = if address.starts_with("[::1]") {
                format!("[::1]:{port}")
            } else {
                format!("127.0.0.1:{port}")
            };
            let caller = TcpStream::connect(to).unwrap();
            let (called, _) = listener.accept().unwrap();
            assert_eq!((check(&called), check(&caller)), (Ok(()), Ok(())), "{address}");
            drop(caller);
            assert_eq!(check(&called), Err(UserCheckError::Closed), "{address}");
        }
        assert!(is_supported());
    }
}
