//! Parsing of HTTP requests, with pure functions.

use std::net::IpAddr;

/// The maximum size of a request, in bytes.
pub(super) const MAX_BYTES: usize = 8 << 10;
/// The maximum number of headers in a request.
const HEADERS: usize = 64;

/// A resource that can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Page,
    Status,
    Metrics,
    Health,
    Readiness,
}

/// The clients that may use an address, and what they may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Only clients on this machine.
    Local,
    /// All clients that can connect.
    Network,
    /// All clients that can connect, but only for the health of the process.
    Health,
}

/// The result of parsing the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The request is incomplete.
    Partial,
    /// A request for a resource. `body` is `false` if only the header of the response was requested.
    Of { resource: Resource, body: bool },
    /// A request that must be rejected with this status code.
    Refused { code: u16, why: &'static str },
}

/// Parses a request that was received at an address with the given access.
pub(super) fn read(bytes: &[u8], access: Access) -> Request {
    let refused = |code, why| Request::Refused { code, why };
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_BYTES => return Request::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return refused(431, "the request is too long");
        }
        Err(_) => return refused(400, "this is not an HTTP request"),
    }
    // Another site may resolve its name to this machine, and could read the status under that name.
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    if access == Access::Local {
        let host = hosts.next().and_then(|host| std::str::from_utf8(host.value).ok());
        if !host.is_some_and(is_this_machine) || hosts.next().is_some() {
            return refused(421, "the job is only shown at 127.0.0.1 or localhost, and under no other name");
        }
    }
    let body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return refused(405, "only GET and HEAD are supported"),
    };
    let path = request.path.unwrap_or_default();
    match path.split(['?', '#']).next().unwrap_or_default() {
        "/healthz" => Request::Of { resource: Resource::Health, body },
        "/readyz" => Request::Of { resource: Resource::Readiness, body },
        _ if access == Access::Health => refused(404, "the paths are /healthz and /readyz"),
        "/" => Request::Of { resource: Resource::Page, body },
        "/status.json" => Request::Of { resource: Resource::Status, body },
        "/metrics" => Request::Of { resource: Resource::Metrics, body },
        _ => refused(404, "the paths are /, /status.json, /metrics, /healthz and /readyz"),
    }
}

/// Returns `true` if a host name, with or without a port, can only mean this machine.
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
        read(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes(), Access::Local)
    }

    fn code(request: Request) -> u16 {
        match request {
            Request::Refused { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn there_are_five_things_to_ask_for() {
        let of = |resource, body| Request::Of { resource, body };
        assert_eq!(get("/", "localhost:6070"), of(Resource::Page, true));
        assert_eq!(get("/status.json?x=1", "127.0.0.1"), of(Resource::Status, true));
        assert_eq!(get("/metrics", "[::1]:6070"), of(Resource::Metrics, true));
        assert_eq!(get("/healthz", "localhost"), of(Resource::Health, true));
        assert_eq!(get("/readyz", "localhost"), of(Resource::Readiness, true));
        let head = read(b"HEAD /metrics HTTP/1.0\r\nhost: LOCALHOST\r\n\r\n", Access::Local);
        assert_eq!(head, of(Resource::Metrics, false));
        assert_eq!(code(get("/../etc/passwd", "localhost")), 404);
        assert_eq!(code(read(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", Access::Local)), 405);
    }

    // INV-62
    #[test]
    fn an_address_for_health_has_nothing_else() {
        let get = |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: 10.0.0.7:6071\r\n\r\n");
            read(request.as_bytes(), Access::Health)
        };
        assert_eq!(get("/healthz"), Request::Of { resource: Resource::Health, body: true });
        assert_eq!(get("/readyz?verbose"), Request::Of { resource: Resource::Readiness, body: true });
        for path in ["/", "/status.json", "/metrics", "/readyz/../metrics"] {
            assert_eq!(code(get(path)), 404, "{path}");
        }
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
        assert_eq!(code(read(b"GET / HTTP/1.1\r\n\r\n", Access::Local)), 421);
        let two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert_eq!(code(read(two, Access::Local)), 421);
        assert!(matches!(
            read(b"GET / HTTP/1.1\r\nHost: node-1\r\n\r\n", Access::Network),
            Request::Of { .. }
        ));
    }

    #[test]
    fn an_incomplete_request_is_awaited_and_a_too_long_one_is_refused() {
        let whole = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len], Access::Local), Request::Partial, "{len}");
        }
        let long = [&b"GET /"[..], &vec![b'a'; MAX_BYTES]].concat();
        assert_eq!(code(read(&long, Access::Local)), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        assert_eq!(code(read(many.as_bytes(), Access::Local)), 431);
        assert_eq!(code(read(b"\x16\x03\x01\x02\x00", Access::Local)), 400);
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for access in [Access::Local, Access::Network, Access::Health] {
                let _ = read(&bytes, access);
            }
        }
    }
}
