//! Connections for calls: accepted callers, refused callers, and garbage.

use crate::support::{Kept, PATIENCE, addresses, certificates, patient};
use distribute_cluster::{Address, Deadline, Job, Task, World};
use distribute_net::handshake::{Hello, Purpose, Reason, Words, decoder};
use distribute_net::{
    Acceptor, Access, ConnectError, Connector, Endpoint, Identity, Listener, Message, Rendezvous, Secret,
};
use distribute_testing::{Port, SplitMix, watched};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

fn ps() -> Task {
    Job::Ps.task(0)
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn access(identity: &Identity) -> Access {
    Access::new(identity, &[loopback()], false).unwrap()
}

fn secret(digit: &str) -> Identity {
    Identity::Secret(Secret::from_hex(&digit.repeat(64), "a test").unwrap())
}

fn connect(connector: &Connector, to: &Task, at: &Address) -> Result<(Endpoint, Arc<Kept>), ConnectError> {
    let kept = Kept::new();
    let connector = connector.clone().settings(patient());
    connector.connect(to, at, kept.clone(), Deadline::after(PATIENCE)).map(|endpoint| (endpoint, kept))
}

/// Runs `callers` with the address of ps 0, which answers each message with its body until `callers` returns.
fn called<T: Send>(identity: &Identity, callers: impl FnOnce(Address) -> T + Send) -> T {
    let mut acceptor =
        Acceptor::bind(ps(), &loopback(), access(identity), PATIENCE).unwrap().settings(patient());
    let at: Address = acceptor.address().to_string().parse().unwrap();
    std::thread::scope(|scope| {
        let waker = acceptor.waker();
        let done = scope.spawn(move || {
            let value = callers(at);
            waker.wake();
            value
        });
        let mut open: Vec<(Endpoint, Arc<Kept>)> = Vec::new();
        while !done.is_finished() {
            for arrival in acceptor.accept(Duration::from_millis(20), 8).unwrap() {
                let kept = Kept::new();
                open.push((arrival.open(kept.clone()).unwrap(), kept));
            }
            for (endpoint, kept) in &open {
                for (_, message) in kept.take().messages {
                    endpoint.send(Message::new(endpoint.peer().to_string(), message.body));
                }
            }
        }
        done.join().unwrap()
    })
}

fn echo(endpoint: &Endpoint, kept: &Kept) -> String {
    endpoint.send(Message::new("ping", vec![7; 300_000]));
    kept.count(None, 1);
    let message = kept.take().messages.remove(0).1;
    assert_eq!(message.body, vec![7; 300_000]);
    String::from_utf8(message.head.to_vec()).unwrap()
}

#[test]
fn tasks_without_a_common_world_call_each_other_with_each_protection() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let tls = Identity::Certificates(certificates(folder.path(), "task"));
        for identity in [Identity::None, secret("a"), tls] {
            called(&identity, |at| {
                let chief = Connector::new(Job::Chief.task(0), access(&identity));
                let worker = Connector::new(Job::Worker.task(7), access(&identity));
                let (one, of_one) = connect(&chief, &ps(), &at).unwrap();
                let (two, of_two) = connect(&worker, &ps(), &at).unwrap();
                assert_eq!(one.peer(), &ps());
                assert_eq!(echo(&one, &of_one), "chief 0");
                assert_eq!(echo(&two, &of_two), "worker 7");
                drop(one);
                assert_eq!(echo(&two, &of_two), "worker 7");
            });
        }
    });
}

#[test]
fn a_foreign_peer_gets_the_reason_and_its_sender() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let strange = Identity::Certificates(certificates(folder.path(), "stranger"));
        called(&secret("a"), |at| {
            let refused = |connector: Connector, to: Task| match connect(&connector, &to, &at) {
                Err(error @ ConnectError::Refused { .. }) => {
                    let text = error.to_string();
                    let ConnectError::Refused { refusal, .. } = error else { unreachable!() };
                    (refusal.reason, text)
                }
                other => panic!("{other:?}"),
            };
            let of = |identity: &Identity| Connector::new(Job::Chief.task(0), access(identity));
            for (connector, to, reason, says) in [
                (
                    of(&secret("b")),
                    ps(),
                    Reason::Secret,
                    "give all tasks of the job the same DISTRIBUTE_SECRET",
                ),
                (of(&Identity::None), ps(), Reason::Secret, "the other one has none"),
                (of(&strange), ps(), Reason::Secret, "TLS"),
                (of(&secret("a")).job("letters"), ps(), Reason::Job, "another job"),
                (
                    of(&secret("a")),
                    Job::Ps.task(1),
                    Reason::Rank,
                    "it is ps 0, not ps 1: check the addresses",
                ),
            ] {
                let (found, text) = refused(connector, to.clone());
                assert_eq!(found, reason, "{text}");
                assert!(
                    text.starts_with(&format!("{to} at {at} refuses calls")) && text.contains(says),
                    "{text}"
                );
            }
            // A worker that wants to join a world.
            let all = vec![at.to_string(), "127.0.0.1:0".to_owned()];
            let joining =
                Rendezvous::new(World::new(2, 1, 1).unwrap(), all).credentials(secret("a")).job("digits");
            let error = joining.join(Kept::new()).unwrap_err().to_string();
            assert!(error.contains("ps 0 only accepts calls here, and joins no world"), "{error}");
            let (endpoint, kept) = connect(&of(&secret("a")), &ps(), &at).unwrap();
            assert_eq!(echo(&endpoint, &kept), "chief 0");
        });
    });
}

#[test]
fn a_caller_of_a_world_worker_gets_an_error() {
    watched(|| {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let port = listener.address().unwrap().port();
        let worker = |worker| {
            let world = World::new(2, worker, 1).unwrap();
            Rendezvous::new(world, addresses(2, "127.0.0.1", port)).settings(patient())
        };
        std::thread::scope(|scope| {
            let leader = scope.spawn(|| worker(0).listener(listener).join(Kept::new()).unwrap());
            let at = format!("127.0.0.1:{port}").parse().unwrap();
            let doctor = Connector::new(Task::new("doctor", 0), access(&Identity::None));
            let call = || connect(&doctor, &Job::Worker.task(0), &at).unwrap_err().to_string();
            assert!(call().contains("worker 0 of a world is at this address"), "{}", call());
            let second = worker(1).join(Kept::new()).unwrap();
            let leader = leader.join().unwrap();
            assert!(call().contains("worker 0 of a world is at this address"), "{}", call());
            drop((leader, second));
        });
    });
}

#[test]
fn missing_peers_are_named_at_the_deadline_with_the_errors_of_the_attempts() {
    watched(|| {
        let connector = Connector::new(Job::Chief.task(0), access(&Identity::None));
        let absent = Port::reserve();
        let at = absent.address().to_string().parse().unwrap();
        let soon = || Deadline::after(Duration::from_millis(200));
        let error = connector.connect(&ps(), &at, Kept::new(), soon()).unwrap_err();
        let ConnectError::Unreachable { last: Some(last), .. } = &error else { panic!("{error}") };
        assert_eq!(last, "connection refused");
        assert!(
            error.to_string().starts_with(&format!("ps 0 at {at} could not be reached in 0.")),
            "{error}"
        );
        // A server that accepts connections and sends nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = silent.local_addr().unwrap().to_string().parse().unwrap();
        let error = connector.connect(&ps(), &at, Kept::new(), soon()).unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        // Plain text is not sent to other machines.
        let far = "192.0.2.1:9".parse().unwrap();
        let error = connector.connect(&ps(), &far, Kept::new(), soon()).unwrap_err().to_string();
        assert!(error.contains("DISTRIBUTE_SECRET"), "{error}");
    });
}

// INV-28
#[test]
fn garbage_before_and_after_the_handshake_disturbs_no_worker() {
    watched(|| {
        called(&secret("a"), |at| {
            let connector = Connector::new(Job::Chief.task(0), access(&secret("a")));
            let (endpoint, kept) = connect(&connector, &ps(), &at).unwrap();
            let mut random = SplitMix(3);
            let noise: Vec<u8> = (0..100_000).map(|_| random.bits() as u8).collect();
            let good = [decoder::preamble(), hello(Job::Chief.task(0), ps())].concat();
            let silent: Vec<_> = (0..10).map(|_| TcpStream::connect(at.to_string()).unwrap()).collect();
            for bytes in [
                b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                noise,
                good[..good.len() - 3].to_vec(),
                [decoder::preamble(), vec![0xff, 0xff]].concat(),
                [good.clone(), Words::Proof(Some([0; 32]), None).encode()].concat(),
                [good, Words::Welcome.encode()].concat(),
            ] {
                let mut socket = TcpStream::connect(at.to_string()).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                let _ = socket.write_all(&bytes);
                let _ = socket.shutdown(std::net::Shutdown::Write);
                let mut told = Vec::new();
                let _ = socket.read_to_end(&mut told);
                assert!(told.len() < 1024);
                assert_eq!(echo(&endpoint, &kept), "chief 0");
            }
            drop(silent);
        });
    });
}

fn hello(from: Task, to: Task) -> Vec<u8> {
    let purpose = Purpose::Call { from, to };
    let hello = Hello {
        job: "job".into(),
        generation: 0,
        table: 0,
        rank: 0,
        workers: 0,
        replicas: 0,
        digest: [0; 32],
        purpose,
    };
    Words::Hello(hello, true, [1; 32]).encode()
}

proptest! {
    /// Decodes the hellos of tasks with any name and number, and the same bytes truncated, extended or with one byte
    /// changed.
    #[test]
    fn words_of_calls_round_trip_and_mutated_ones_are_words_or_an_error(
        from in "[a-z]{1,12}|\\PC{1,80}",
        to in "[a-z]{1,12}|\\PC{1,80}",
        index in any::<usize>(),
        at in any::<usize>(),
        byte in any::<u8>(),
    ) {
        let (from, to) = (Task::new(from, index), Task::new(to, index / 2));
        let bytes = hello(from.clone(), to.clone());
        prop_assert!(bytes.len() <= 2 + 1024);
        let words = Words::decode(&bytes[2..]);
        let Ok(Words::Hello(found, true, _)) = words else { panic!("{words:?}") };
        prop_assert_eq!(found.purpose, Purpose::Call { from, to });
        let mut changed = bytes[2..].to_vec();
        let at = at % changed.len();
        prop_assert!(Words::decode(&changed[..at]).is_err());
        changed[at] = byte;
        if let Ok(words) = Words::decode(&changed) {
            prop_assert_eq!(Words::decode(&words.encode()[2..]), Ok(words));
        }
        changed.push(byte);
        let _ = Words::decode(&changed);
    }
}

#[test]
fn names_that_a_terminal_would_obey_are_refused() {
    for name in ["", "a\u{1b}[2J", "a\nb"] {
        let bytes = hello(Task::new(name, 0), ps());
        assert!(Words::decode(&bytes[2..]).is_err(), "{name:?}");
    }
}

/// Runs a closure as another user, on a thread that changes its user and exits afterwards.
#[cfg(target_os = "linux")]
fn as_user<T: Send>(number: u32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = scope.spawn(move || {
            let user = rustix::process::Uid::from_raw(number);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            run()
        });
        run.join().unwrap()
    })
}

// INV-81
#[test]
#[cfg(target_os = "linux")]
fn without_a_secret_a_process_of_another_user_is_refused_and_refuses() {
    const STRANGER: u32 = 54_321;
    watched(|| {
        if !rustix::process::geteuid().is_root() {
            return distribute_testing::skipped("root alone can be another user");
        }
        let chief = || Connector::new(Job::Chief.task(0), access(&Identity::None));
        let says = format!("it is a process of the user with the number {STRANGER}");
        called(&Identity::None, |at| {
            // A caller that sends everything at once, without waiting.
            let mut socket = as_user(STRANGER, || TcpStream::connect(at.to_string())).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let purpose = Purpose::Call { from: Job::Chief.task(0), to: ps() };
            let hello = Hello {
                job: "job".to_owned(),
                generation: 0,
                table: 0,
                rank: 0,
                workers: 0,
                replicas: 0,
                digest: [0; 32],
                purpose,
            };
            let words = [Words::Hello(hello, false, [7; 32]).encode(), Words::Proof(None, None).encode()];
            socket.write_all(&[decoder::preamble(), words.concat()].concat()).unwrap();
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer).unwrap();
            assert!(String::from_utf8_lossy(&answer).contains(&says), "{answer:?}");
            // A regular caller, which checks whom it has reached.
            let error = as_user(STRANGER, || connect(&chief(), &ps(), &at).map(drop)).unwrap_err();
            assert!(error.to_string().contains("it is a process of the user with the number 0"), "{error}");
            let (endpoint, kept) = connect(&chief(), &ps(), &at).unwrap();
            assert_eq!(echo(&endpoint, &kept), "chief 0");
        });
        // The port belongs to a stranger.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        std::thread::scope(|scope| {
            let stranger = scope.spawn(|| {
                as_user(STRANGER, || {
                    let (mut socket, _) = listener.accept().unwrap();
                    let challenge = Words::Challenge(0, [7; 32], None, None);
                    socket.write_all(&[decoder::preamble(), challenge.encode()].concat()).unwrap();
                    // The stranger receives the hello and the reason of the refusal.
                    let mut heard = Vec::new();
                    socket.read_to_end(&mut heard).unwrap();
                    heard
                })
            });
            let error = connect(&chief(), &ps(), &at).unwrap_err();
            assert!(
                matches!(error, ConnectError::Refused { .. }) && error.to_string().contains(&says),
                "{error}"
            );
            let heard = stranger.join().unwrap();
            assert!(String::from_utf8_lossy(&heard).contains(&says));
        });
        // With a secret, the user of a process does not matter.
        called(&secret("a"), |at| {
            let chief = Connector::new(Job::Chief.task(0), access(&secret("a")));
            as_user(STRANGER, || {
                let (endpoint, kept) = connect(&chief, &ps(), &at).unwrap();
                assert_eq!(echo(&endpoint, &kept), "chief 0");
            });
        });
    });
}
