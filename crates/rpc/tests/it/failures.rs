//! Servers that are killed, suspended or sent garbage. Each caller gets an error that names the server.

use crate::support::{self, PATIENCE, client, patient, ps, server};
use distribute_cluster::{ClusterSpec, Job, Stopwatch};
use distribute_net::handshake::{Caller, HandshakeDecoder, Hello, Purpose, caller};
use distribute_net::{Identity, Message, Settings, job_name};
use distribute_rpc::{CallError, Client, ClientBuilder};
use distribute_testing::child::{Killed, command, part};
use distribute_testing::{SplitMix, watched};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Runs in its own process: a server that never exits.
fn serve_for_ever() -> ! {
    let never = |_call, reply| std::mem::forget::<distribute_rpc::Reply>(reply);
    let server = server(|builder| builder.service("never", never));
    println!("at {}", server.address());
    let _ = server.join();
    unreachable!("nobody ends it");
}

/// Starts [`serve_for_ever`] in a process, and returns the address of its server.
fn process(test: &str) -> (Killed, String) {
    let mut child = Killed(command(test, "serve").spawn().unwrap());
    let out = BufReader::new(child.0.stdout.take().unwrap());
    // The watchdog of the test ends a process that prints nothing.
    let at = out.lines().map_while(Result::ok).find_map(|line| {
        line.split_once("at 127.0.0.1:").map(|(_, port)| format!("127.0.0.1:{}", port.trim()))
    });
    (child, at.unwrap())
}

/// Starts [`serve_for_ever`] in a process, and returns it with a client of its server.
fn process_and_client(test: &str, settings: Settings) -> (Killed, Client) {
    let (child, address) = process(test);
    let cluster = ClusterSpec::from_lists([("ps", [address])]).unwrap();
    let clients = ClientBuilder::new(cluster, Job::Chief.task(0)).credentials(Identity::None);
    (child, clients.settings(settings).connect(&ps(), PATIENCE).unwrap())
}

fn lost(error: CallError, reason: &str) {
    let text = error.to_string();
    assert!(matches!(error, CallError::Lost { .. }), "{text}");
    assert!(text.starts_with("the connection to ps 0 at 127.0.0.1:") && text.contains(reason), "{text}");
    assert!(text.contains("while never was called"), "{text}");
}

// INV-33
#[test]
fn a_killed_server_is_noticed_at_once() {
    if part().is_some() {
        serve_for_ever();
    }
    watched(|| {
        let (mut process, client) =
            process_and_client("failures::a_killed_server_is_noticed_at_once", patient());
        std::thread::scope(|scope| {
            let started = [(); 4].map(|()| client.start("never", Message::default(), PATIENCE).unwrap());
            let calls = started.map(|call| scope.spawn(|| call.wait(Duration::from_secs(3600))));
            client.call("doctor", Message::default(), PATIENCE).unwrap();
            process.0.kill().unwrap();
            let waited = Stopwatch::start();
            for call in calls {
                lost(call.join().unwrap().unwrap_err(), "connection");
            }
            // Far below the 30 s after which silence is noticed. The promise is 200 ms, but this machine may be busy.
            assert!(waited.elapsed() < Duration::from_secs(5), "{:?}", waited.elapsed());
        });
    });
}

#[test]
fn a_stopped_server_is_lost_after_its_silence() {
    if part().is_some() {
        serve_for_ever();
    }
    watched(|| {
        let settings = Settings {
            silence: Duration::from_secs(1),
            shutdown_idle_timeout: Duration::from_millis(100),
            ..patient()
        };
        let (process, client) =
            process_and_client("failures::a_stopped_server_is_lost_after_its_silence", settings);
        let pid = process.0.id().to_string();
        assert!(std::process::Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
        let error = client.call("never", Message::default(), Duration::from_secs(3600)).unwrap_err();
        lost(error, "it has sent nothing for 1.0 s");
    });
}

/// Returns a connection to a server that was authenticated by hand.
fn authenticated(address: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let purpose = Purpose::Call { from: Job::Chief.task(0), to: ps() };
    let job = job_name();
    let (generation, table, rank, workers, replicas) = Default::default();
    let hello = Hello { job, generation, table, rank, workers, replicas, digest: [0; 32], purpose };
    let mut caller = Caller::new(hello, 0, None, [1; 32]);
    socket.write_all(&caller.first()).unwrap();
    let mut hearing = HandshakeDecoder::default();
    loop {
        let read = socket.read(hearing.buffer()).unwrap();
        assert_ne!(read, 0);
        if let Some(words) = hearing.advance(read).unwrap() {
            match caller.receive(words).unwrap() {
                caller::Answer::Send(words) => socket.write_all(&words).unwrap(),
                caller::Answer::Welcome => return socket,
            }
        }
    }
}

/// Returns the header of a frame, and the bytes after it.
fn frame(kind: u8, head: u32, body: u64, rest: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &head.to_le_bytes(), &body.to_le_bytes(), rest].concat()
}

// INV-28
#[test]
fn garbage_closes_only_the_connection_that_sent_it() {
    watched(|| {
        let server = server(|builder| builder);
        let client = client(&server, Job::Worker.task(0));
        let mut random = SplitMix(5);
        let noise: Vec<u8> = (0..50_000).map(|_| random.bits() as u8).collect();
        // Callers that send no hello.
        let _silent: Vec<_> =
            (0..20).map(|_| TcpStream::connect(server.address().to_string()).unwrap()).collect();
        for bytes in [&noise[..], b"GET / HTTP/1.1\r\n\r\n", b"dstrbnet"] {
            let mut socket = TcpStream::connect(server.address().to_string()).unwrap();
            let _ = socket.write_all(bytes);
        }
        // Callers that then send no frame, no frame of a call, or an incomplete one.
        let call = |service: &str| {
            let mut head = vec![1];
            head.extend_from_slice(&7u64.to_le_bytes());
            head.extend_from_slice(&(service.len() as u16).to_le_bytes());
            head.extend_from_slice(service.as_bytes());
            head
        };
        let good = call("doctor");
        let cut_off = frame(1, good.len() as u32, 0, &good[..good.len() - 1]);
        for bytes in [
            noise.clone(),
            frame(1, u32::MAX, 0, b""),
            frame(1, 8, u64::MAX, b""),
            frame(9, 0, 0, b""),
            frame(1, 0, 0, b""),
            frame(1, 3, 0, &[1, 0, 0]),
            frame(1, 9, 0, &[2; 9]),
            cut_off.clone(),
        ] {
            let mut socket = authenticated(&server.address().to_string());
            let _ = socket.write_all(&bytes);
            if bytes == cut_off {
                let _ = socket.shutdown(std::net::Shutdown::Write);
            }
            // The server closes the connection in spite of heartbeats. It may be reset while data is being sent.
            let ended = socket.read_to_end(&mut Vec::new());
            let timed_out = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
            assert!(!ended.as_ref().is_err_and(timed_out), "{ended:?}");
            let body = vec![3; 100_000];
            let echo = client.call("doctor", Message::new("echo", body.clone()), PATIENCE).unwrap();
            assert_eq!(echo.body, body);
        }
        // A good call by hand is answered.
        let mut socket = authenticated(&server.address().to_string());
        socket.write_all(&frame(1, good.len() as u32, 2, &[&good[..], b"hi"].concat())).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hi") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        drop(socket);
        support::until("the end of their connections", || server.connections() == 1);
    });
}

// INV-84
#[test]
fn a_caller_that_does_not_follow_the_protocol_is_named_in_the_log() {
    if part().is_some() {
        serve_for_ever();
    }
    watched(|| {
        let name = "failures::a_caller_that_does_not_follow_the_protocol_is_named_in_the_log";
        for (bytes, reason) in [
            (
                frame(9, 0, 0, b""),
                "its data cannot be decoded: a frame begins with [09, 00, 00, 00], which is not",
            ),
            (frame(1, 0, 0, b""), "it sent something other than a call"),
        ] {
            // A server logs only the first of these errors and counts the next ones, so each case has its own server.
            let (mut child, address) = process(name);
            let mut socket = authenticated(&address);
            socket.write_all(&bytes).unwrap();
            let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok);
            let expected = format!("ps 0 has closed the connection of chief 0: {reason}");
            assert!(lines.any(|line| line.contains(&expected)), "{expected}");
        }
    });
}
