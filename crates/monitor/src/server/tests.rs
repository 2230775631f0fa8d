use super::*;
use crate::report::tests::busy;
use crate::{Report, Source};
use distribute_cluster::Deadline;
use distribute_testing::watched;
use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::Duration;

struct Busy;

impl Source for Busy {
    fn report(&mut self) -> Report {
        busy()
    }
}

fn started() -> Server {
    Server::start("127.0.0.1:0", false, Busy).unwrap()
}

fn connected(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connected(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

/// Repeats a request for `path` until `fits` accepts the response, and returns this response.
fn until(address: SocketAddr, path: &str, fits: impl Fn(&str) -> bool) -> String {
    let deadline = Deadline::after(Duration::from_secs(30));
    loop {
        let answer = get(address, path);
        if fits(&answer) {
            return answer;
        }
        assert!(!deadline.has_passed(), "{answer}");
    }
}

#[test]
fn page_json_and_metrics_are_served() {
    watched(|| {
        let server = started();
        let address = server.address();
        assert!(get(address, "/").contains("<!doctype html>"));
        let answer = until(address, "/status.json", |answer| answer.contains("\"steps\":120"));
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let report: Report = serde_json::from_str(body).unwrap();
        assert_eq!((report.waits, report.format), (busy().waits, crate::FORMAT));
        assert_eq!(report.process, std::process::id());
        assert!(get(address, "/metrics").contains("\ndistribute_steps_total 120\n"));
        assert!(get(address, "/nothing").starts_with("HTTP/1.1 404 "));
        let other = ask(address, "GET /status.json HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(other.starts_with("HTTP/1.1 421 ") && !other.contains("steps"), "{other}");
    });
}

// INV-62
#[test]
fn an_address_for_health_is_for_all_and_has_no_status() {
    watched(|| {
        let mut server = started();
        let health = server.add_health("0.0.0.0:0").unwrap();
        let alone = Server::start_health("0.0.0.0:0", Busy).unwrap();
        for port in [health.port(), alone.address().port()] {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let probe =
                |path: &str| ask(address, &format!("GET {path} HTTP/1.1\r\nHost: 10.0.0.7:6071\r\n\r\n"));
            assert!(probe("/healthz").starts_with("HTTP/1.1 200 "));
            until(address, "/readyz", |answer| answer.starts_with("HTTP/1.1 200 "));
            let other = probe("/status.json");
            assert!(other.starts_with("HTTP/1.1 404 ") && !other.contains("steps"), "{other}");
        }
        assert!(get(server.address(), "/healthz").starts_with("HTTP/1.1 200 "));
        assert!(matches!(server.add_health(&health.to_string()), Err(Error::Listen { .. })));
        drop(server);
        assert!(TcpStream::connect(("127.0.0.1", health.port())).is_err());
    });
}

// INV-62
#[test]
fn a_silent_client_is_answered_at_the_deadline_and_delays_no_other() {
    watched(|| {
        let server = started();
        let address = server.address();
        let mut silent = connected(address);
        silent.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(get(address, "/metrics").starts_with("HTTP/1.1 200 "));
        let mut answer = String::new();
        silent.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    });
}

// INV-62, INV-83
#[test]
fn who_asks_is_answered_however_many_are_there_and_say_nothing() {
    watched(|| {
        let server = started();
        let address = server.address();
        let silent: Vec<_> = (0..8 * CONNECTIONS).map(|_| connected(address)).collect();
        for path in ["/", "/status.json", "/metrics"] {
            let answer = get(address, path);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        // The other connections are still open until their deadline.
        let late = silent.iter().rev().take(CONNECTIONS / 2 - 3).filter(|stream| {
            let mut answer = String::new();
            (&mut &**stream).read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 408 ")
        });
        assert_eq!(late.count(), CONNECTIONS / 2 - 3);
    });
}

/// A source that hangs for each report until a message arrives, for at most one minute.
struct Stuck(mpsc::Receiver<()>);

impl Source for Stuck {
    fn report(&mut self) -> Report {
        let _ = self.0.recv_timeout(Duration::from_secs(60));
        busy()
    }
}

#[test]
fn a_job_that_cannot_answer_is_shown_as_it_was_with_the_age_of_that() {
    watched(|| {
        let (go_on, stuck) = mpsc::channel();
        let server = Server::start("127.0.0.1:0", false, Stuck(stuck)).unwrap();
        let address = server.address();
        until(address, "/metrics", |answer| answer.contains("\ndistribute_steps_total 0\n"));
        until(address, "/metrics", |answer| !answer.contains("\ndistribute_report_age_seconds 0\n"));
        go_on.send(()).unwrap();
        until(address, "/metrics", |answer| answer.contains("\ndistribute_steps_total 120\n"));
        // Dropping the server returns although the source hangs again.
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    });
}

#[test]
fn an_address_that_is_taken_or_of_the_network_is_refused() {
    let server = started();
    let taken = server.address().to_string();
    let error = Server::start(&taken, false, Busy).unwrap_err();
    assert!(error.to_string().starts_with(&format!("monitor: cannot listen at {taken}: ")), "{error}");
    let error = Server::start("0.0.0.0:0", false, Busy).unwrap_err();
    assert!(matches!(error, Error::Network { .. }), "{error}");
    assert!(matches!(Server::start("nonsense", false, Busy), Err(Error::Listen { .. })));
    let open = Server::start("0.0.0.0:0", true, Busy).unwrap();
    assert!(
        ask(open.address(), "GET /metrics HTTP/1.1\r\nHost: node-1\r\n\r\n").starts_with("HTTP/1.1 200 ")
    );
}
