//! HTTP requests. Pure.

use std::net::IpAddr;

/// The maximum number of bytes of a request.
pub(super) const LONGEST: usize = 8 << 10;
/// The maximum number of headers.
const HEADERS: usize = 64;

/// The requested resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Page,
    Status,
    Metrics,
}

/// The result of parsing bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The request is incomplete.
    Partial,
    /// A request for a resource; without the body if only the head was requested.
    Of { asked: Asked, body: bool },
    /// A request that is refused with this status code.
    Refused { code: u16, why: &'static str },
}

/// Parses a request. `network` allows requests for other hosts than this one.
pub(super) fn read(bytes: &[u8], network: bool) -> Request {
    let refused = |code, why| Request::Refused { code, why };
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < LONGEST => return Request::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return refused(431, "the request is too long");
        }
        Err(_) => return refused(400, "this is no request of HTTP"),
    }
    // Another site may resolve its name to this machine, and could read the status under that name.
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    if !network {
        let host = hosts.next().and_then(|host| std::str::from_utf8(host.value).ok());
        if !host.is_some_and(is_this_machine) || hosts.next().is_some() {
            return refused(421, "the job is watched at 127.0.0.1 or localhost, and by no other name");
        }
    }
    let body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return refused(405, "there is nothing here but to look: GET and HEAD"),
    };
    let path = request.path.unwrap_or_default();
    match path.split(['?', '#']).next().unwrap_or_default() {
        "/" => Request::Of { asked: Asked::Page, body },
        "/status.json" => Request::Of { asked: Asked::Status, body },
        "/metrics" => Request::Of { asked: Asked::Metrics, body },
        _ => refused(404, "there are /, /status.json and /metrics"),
    }
}

/// Whether a name, with or without a port, means only this machine.
fn is_this_machine(host: &str) -> bool {
    let (name, rest) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    // A port consists of one or more digits.
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !(rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)) {
        return false;
    }
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get(path: &str, host: &str) -> Request {
        read(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes(), false)
    }

    fn code(request: Request) -> u16 {
        match request {
            Request::Refused { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn there_are_three_things_to_ask_for() {
        let of = |asked, body| Request::Of { asked, body };
        assert_eq!(get("/", "localhost:6070"), of(Asked::Page, true));
        assert_eq!(get("/status.json?x=1", "127.0.0.1"), of(Asked::Status, true));
        assert_eq!(get("/metrics", "[::1]:6070"), of(Asked::Metrics, true));
        let head = read(b"HEAD /metrics HTTP/1.0\r\nhost: LOCALHOST\r\n\r\n", false);
        assert_eq!(head, of(Asked::Metrics, false));
        assert_eq!(code(get("/../etc/passwd", "localhost")), 404);
        assert_eq!(code(read(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", false)), 405);
    }

    #[test]
    fn other_names_of_this_machine_are_refused_unless_the_network_may_ask() {
        for host in [
            "evil.example",
            "evil.example:6070",
            "127.0.0.1.evil.example",
            "[::2]",
            "10.0.0.1",
            "",
            "[::1",
            "[::1].evil",
            "[::1]evil:80",
            "[::1]:",
            "[::1]:80.evil",
            "localhost:80.evil",
            "127.0.0.1:evil",
            "localhost:1:2",
            "[localhost].evil",
            "::1.evil",
            ":80",
        ] {
            assert_eq!(code(get("/", host)), 421, "{host}");
        }
        assert_eq!(code(read(b"GET / HTTP/1.1\r\n\r\n", false)), 421);
        let two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert_eq!(code(read(two, false)), 421);
        assert!(matches!(read(b"GET / HTTP/1.1\r\nHost: node-1\r\n\r\n", true), Request::Of { .. }));
    }

    #[test]
    fn what_is_not_whole_is_awaited_and_what_is_too_long_is_refused() {
        let whole = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len], false), Request::Partial, "{len}");
        }
        let long = [&b"GET /"[..], &vec![b'a'; LONGEST]].concat();
        assert_eq!(code(read(&long, false)), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        assert_eq!(code(read(many.as_bytes(), false)), 431);
        assert_eq!(code(read(b"\x16\x03\x01\x02\x00", false)), 400);
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..300), network: bool) {
            let _ = read(&bytes, network);
        }
    }
}
