//! Checks that workers that may not join receive the reason and disturb no other worker.

use crate::support::{Kept, addresses, certificates, patient};
use distribute_cluster::{Deadline, Stopwatch, World};
use distribute_net::handshake::{Hello, Purpose, Reason, Words, decoder};
use distribute_net::{Identity, JoinError, Listener, Mesh, Message, Rendezvous, Secret, Transport};
use distribute_testing::{SplitMix, watched};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn secret(digit: &str) -> Identity {
    Identity::Secret(Secret::from_hex(&digit.repeat(64), "a test").unwrap())
}

/// Returns the rendezvous of a worker of a job of two. All settings fit those of the other worker.
fn rendezvous(worker: usize, port: u16) -> Rendezvous {
    Rendezvous::new(World::new(2, worker, 1).unwrap(), addresses(2, "127.0.0.1", port))
        .job("digits")
        .generation(5)
        .agree_on(b"cluster")
        .credentials(secret("a"))
        .settings(patient())
        .timeout(Duration::from_secs(40))
}

/// Starts the leader, runs `others` with its port while it waits, and then joins the second worker.
fn disturbed(others: impl FnOnce(u16)) -> [(Mesh, Arc<Kept>); 2] {
    mesh_disturbed_by(&secret("a"), others)
}

/// Acts like [`disturbed`], with workers that have the given identity.
fn mesh_disturbed_by(identity: &Identity, others: impl FnOnce(u16)) -> [(Mesh, Arc<Kept>); 2] {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let port = listener.address().unwrap().port();
    std::thread::scope(|scope| {
        let leader = scope.spawn(move || {
            let kept = Kept::new();
            (
                rendezvous(0, port)
                    .credentials(identity.clone())
                    .listener(listener)
                    .join(kept.clone())
                    .unwrap(),
                kept,
            )
        });
        others(port);
        let kept = Kept::new();
        let second = rendezvous(1, port).credentials(identity.clone()).join(kept.clone()).unwrap();
        let second = (second, kept);
        [leader.join().unwrap(), second]
    })
}

/// Checks that both workers reach each other.
fn works([(first, first_kept), (second, second_kept)]: &[(Mesh, Arc<Kept>); 2]) {
    first.send(1, Message::new("ping", vec![1; 100_000]));
    second_kept.count(Some(second), 1);
    second.send(0, Message::new("pong", vec![2; 100_000]));
    first_kept.count(Some(first), 1);
    for (kept, head) in [(first_kept, "pong"), (second_kept, "ping")] {
        let come = kept.take();
        assert_eq!((&come.messages[0].1.head[..], come.lost), (head.as_bytes(), vec![]));
    }
}

fn refused(rendezvous: Rendezvous) -> (Reason, String) {
    match rendezvous.join(Kept::new()) {
        Err(error @ JoinError::Refused { worker: 0, .. }) => {
            let text = error.to_string();
            let JoinError::Refused { refusal, .. } = error else { unreachable!() };
            (refusal.reason, text)
        }
        other => panic!("{other:?}"),
    }
}

/// Sends bytes over a raw connection, and returns the bytes that are received until it ends.
fn answer_to(port: u16, bytes: &[u8], half_closed: bool) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let _ = socket.write_all(bytes);
    if half_closed {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut all = Vec::new();
    // The connection may be reset while bytes are still being sent.
    let _ = socket.read_to_end(&mut all);
    all
}

fn refusal_in(told: &[u8]) -> (Reason, String) {
    match Words::decode(&told[decoder::PREAMBLE + 2..]).unwrap() {
        Words::Refusal(refusal) => (refusal.reason, refusal.to_string()),
        other => panic!("{other:?}"),
    }
}

fn hello() -> Hello {
    Hello {
        job: "digits".into(),
        generation: 5,
        table: 0,
        rank: 1,
        workers: 2,
        replicas: 1,
        digest: [0; 32],
        purpose: Purpose::Link,
    }
}

#[test]
fn a_peer_outside_the_world_gets_the_reason_by_name() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let pair = disturbed(|port| {
            let alike = || rendezvous(1, port);
            let strange = certificates(folder.path(), "stranger");
            for (caller, reason, text) in [
                (alike().credentials(secret("b")), Reason::Secret, "the secrets of the two tasks differ"),
                (alike().credentials(Identity::None), Reason::Secret, "and the other one has none"),
                // A stranger does not end the rendezvous of the others, whatever it says of itself.
                (
                    alike().credentials(Identity::None).job("letters"),
                    Reason::Job,
                    "another job than \"letters\" is at this address",
                ),
                (
                    alike().credentials(secret("b")).job("letters").agree_on(b"other"),
                    Reason::Secret,
                    "check that no other job uses this address",
                ),
                (
                    alike().generation(4),
                    Reason::Generation,
                    "worker 1 is of generation 4, and worker 0 of generation 5",
                ),
                (alike().credentials(Identity::Certificates(strange)), Reason::Secret, "TLS"),
            ] {
                let (found, said) = refused(caller);
                assert_eq!(found, reason, "{said}");
                assert!(said.starts_with("worker 0 at 127.0.0.1:") && said.contains(text), "{said}");
            }
        });
        works(&pair);
    });
}

/// Joins the third worker of a job of three, which `third` configures, after the second one. Returns the errors of all
/// three.
fn with_a_third(
    identity: &Identity,
    timeout: Duration,
    third: impl FnOnce(u16) -> Rendezvous,
) -> [JoinError; 3] {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let port = listener.address().unwrap().port();
    let (told, waits) = std::sync::mpsc::channel();
    let leader = of_three(2, 0, port).credentials(identity.clone()).timeout(timeout).listener(listener);
    let leader = leader.on_progress(move |progress| {
        if progress.missing.len() == 1 {
            let _ = told.send(());
        }
    });
    let second = of_three(2, 1, port).credentials(identity.clone()).timeout(timeout);
    std::thread::scope(|scope| {
        let others = [leader, second].map(|other| scope.spawn(|| other.join(Kept::new()).unwrap_err()));
        waits.recv_timeout(Duration::from_secs(30)).unwrap();
        let third = third(port).join(Kept::new()).unwrap_err();
        let [leader, second] = others.map(|other| other.join().unwrap());
        [leader, second, third]
    })
}

/// Returns the rendezvous of a worker of a job of three.
fn of_three(replicas: usize, worker: usize, port: u16) -> Rendezvous {
    Rendezvous::new(World::new(3, worker, replicas).unwrap(), addresses(3, "127.0.0.1", port))
        .job("digits")
        .agree_on(b"cluster")
        .settings(patient())
        .timeout(Duration::from_secs(300))
}

// INV-85
#[test]
fn a_worker_of_the_job_that_disagrees_ends_the_rendezvous_of_all_at_once() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Identity::Certificates(certificates(folder.path(), "ours"));
        let of_four = |port| {
            let mut all = addresses(3, "127.0.0.1", port);
            all.push("127.0.0.1:0".to_owned());
            Rendezvous::new(World::new(4, 2, 2).unwrap(), all)
                .job("digits")
                .agree_on(b"cluster")
                .settings(patient())
        };
        type Third<'a> = &'a dyn Fn(u16) -> Rendezvous;
        let changes: [(&Identity, Reason, &str, Third<'_>); 5] = [
            (&secret("a"), Reason::Job, "another job than \"letters\"", &|port| {
                of_three(2, 2, port).job("letters")
            }),
            (&certificates, Reason::Job, "another job than \"letters\"", &|port| {
                of_three(2, 2, port).job("letters")
            }),
            (&secret("a"), Reason::Cluster, "not of the same cluster", &|port| {
                of_three(2, 2, port).agree_on(b"other")
            }),
            (&Identity::None, Reason::Cluster, "worker 2 knows 3 workers and 1 replicas", &|port| {
                of_three(1, 2, port)
            }),
            (&secret("a"), Reason::Cluster, "worker 2 knows 4 workers and 2 replicas", &of_four),
        ];
        for (identity, reason, text, third) in changes {
            let waited = Stopwatch::start();
            let all = with_a_third(identity, Duration::from_secs(300), |port| {
                third(port).credentials(identity.clone())
            });
            assert!(waited.elapsed() < Duration::from_secs(60), "{:?}", waited.elapsed());
            for other in &all[..2] {
                let said = other.to_string();
                let JoinError::OtherRefused { worker: 2, refusal, .. } = other else { panic!("{said}") };
                assert_eq!(refusal.reason, reason, "{said}");
                let start = "the group cannot be formed, because worker 2 was refused, which connected from \
                     127.0.0.1:";
                assert!(said.starts_with(start) && said.contains(text), "{said}");
            }
            let JoinError::Refused { worker: 0, refusal, .. } = &all[2] else { panic!("{}", all[2]) };
            assert_eq!(refusal.reason, reason);
        }
    });
}

/// Checks that all wait until the deadline, and that the error then names the third worker's connection with this
/// reason.
fn named_at_the_deadline(identity: &Identity, third: impl FnOnce(u16) -> Rendezvous, reason: &str) {
    let timeout = Duration::from_secs(4);
    let waited = Stopwatch::start();
    let all = with_a_third(identity, timeout, third);
    assert!(waited.elapsed() >= timeout);
    for other in &all[..2] {
        let said = other.to_string();
        assert!(matches!(other, JoinError::Deadline { .. }), "{said}");
        assert!(said.contains("; these connections were refused: 127.0.0.1:"), "{said}");
        assert!(said.contains(reason), "{said}");
    }
    let leader = all[0].to_string();
    // The second may have given up a moment before.
    assert!(leader.contains("worker 2 at 127.0.0.1:0"), "{leader}");
}

// INV-85
#[test]
fn a_connection_of_another_secret_ends_nothing_and_is_named_in_the_error_at_the_deadline() {
    watched(|| {
        let third = |port| of_three(1, 2, port).job("letters").credentials(secret("b"));
        named_at_the_deadline(&secret("a"), third, " (the secrets of the two tasks differ: give all tasks");
    });
}

// INV-85
#[test]
fn another_job_of_the_same_user_without_a_secret_ends_nothing() {
    watched(|| {
        let third = |port| of_three(1, 2, port).job("letters");
        named_at_the_deadline(&Identity::None, third, " (another job than \"letters\" is at this address");
    });
}

#[test]
fn a_second_worker_of_one_number_is_refused_before_and_after_the_world_is_complete() {
    watched(|| {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let port = listener.address().unwrap().port();
        let of_three = |worker| {
            let world = World::new(3, worker, 1).unwrap();
            Rendezvous::new(world, addresses(3, "127.0.0.1", port)).settings(patient())
        };
        let join = |rendezvous: Rendezvous| {
            let kept = Kept::new();
            (rendezvous.join(kept.clone()).unwrap(), kept)
        };
        std::thread::scope(|scope| {
            let (joined, waits) = std::sync::mpsc::channel();
            let told = std::sync::Mutex::new(joined);
            let leader = of_three(0).listener(listener).on_progress(move |progress| {
                // One of the two workers with the same number has joined.
                if progress.missing.len() == 1 {
                    let _ = told.lock().unwrap().send(());
                }
            });
            let leader = scope.spawn(|| join(leader));
            let second = scope.spawn(|| join(of_three(1)));
            waits.recv_timeout(Duration::from_secs(30)).unwrap();
            let (reason, text) = refused(of_three(1));
            assert_eq!(reason, Reason::Taken, "{text}");
            assert!(text.contains("worker 1 has already joined, at 127.0.0.1:"), "{text}");
            let third = scope.spawn(|| join(of_three(2)));
            let all = [leader, second, third].map(|worker| worker.join().unwrap());
            let (reason, text) = refused(of_three(1));
            assert_eq!(reason, Reason::Complete);
            assert!(text.contains("the world is complete"), "{text}");
            all[0].0.set_finished(true);
            let (reason, text) = refused(of_three(1));
            assert_eq!(reason, Reason::Ended);
            assert!(
                text.contains("the training has ended on all workers, and worker 0 waits for no worker 1")
            );
            all[0].0.set_finished(false);
            // A process that agrees on other bytes is of another cluster or program.
            assert_eq!(refused(of_three(2).agree_on(b"x")).0, Reason::Cluster);
            all[0].0.send(2, Message::new("on", vec![]));
            all[2].1.count(None, 1);
            assert!(all.iter().all(|(_, kept)| kept.take().lost.is_empty()));
        });
    });
}

// INV-28
#[test]
fn garbage_is_refused_at_once_and_disturbs_no_worker() {
    watched(|| {
        let attack = |port: u16| {
            let mut random = SplitMix(7);
            let noise: Vec<u8> = (0..100_000).map(|_| random.bits() as u8).collect();
            assert_eq!(refusal_in(&answer_to(port, b"GET / HTTP/1.1\r\n\r\n", false)).0, Reason::Protocol);
            answer_to(port, &noise, false);
            // A valid beginning that is cut off.
            let good = [decoder::preamble(), Words::Hello(hello(), true, [1; 32]).encode()].concat();
            for length in [1, 7, 9, 10, 11, 12, 40, good.len() - 1] {
                assert_eq!(answer_to(port, &good[..length], true), b"", "of {length} bytes");
            }
            // Lengths that are too large, or nothing.
            for length in [[0xff, 0xff], [1, 4], [0, 0]] {
                let bytes = [decoder::preamble(), length.to_vec()].concat();
                assert_eq!(refusal_in(&answer_to(port, &bytes, false)).0, Reason::Protocol);
            }
            // Another version.
            let mut bytes = decoder::preamble();
            bytes[8] = 99;
            let (reason, text) = refusal_in(&answer_to(port, &bytes, false));
            assert_eq!(reason, Reason::Version);
            assert!(text.contains("version 99"), "{text}");
            // A message out of turn, and a wrong proof.
            let welcome = [decoder::preamble(), Words::Welcome.encode()].concat();
            assert_eq!(refusal_in(&answer_to(port, &welcome, false)).0, Reason::Protocol);
            let forged = [good, Words::Proof(Some([0; 32]), None).encode()].concat();
            let answer = answer_to(port, &forged, false);
            assert!(String::from_utf8_lossy(&answer).contains("secrets of the two tasks differ"));
        };
        let (port, others) = std::sync::mpsc::channel();
        let pair = disturbed(|at| {
            attack(at);
            port.send(at).unwrap();
        });
        works(&pair);
        // The listener stays open.
        attack(others.recv_timeout(Duration::from_secs(1)).unwrap());
        works(&pair);
    });
}

#[test]
fn a_different_secret_fails_in_the_tls_handshake() {
    watched(|| {
        let listener = Listener::bind("0.0.0.0:0").unwrap();
        let port = listener.address().unwrap().port();
        let far = move |worker| {
            let world = World::new(2, worker, 1).unwrap();
            let rendezvous = Rendezvous::new(world, addresses(2, "0.0.0.0", port)).settings(patient());
            rendezvous.timeout(Duration::from_secs(40))
        };
        std::thread::scope(|scope| {
            let leader = far(0).credentials(secret("a")).listener(listener);
            let leader = scope.spawn(move || leader.join(Kept::new()).map(drop).unwrap());
            let error = far(1).credentials(secret("b")).join(Kept::new()).unwrap_err();
            let JoinError::Refused { refusal, .. } = &error else { panic!("{error}") };
            assert_eq!(refusal.reason, Reason::Secret);
            assert!(error.to_string().contains("TLS: "), "{error}");
            far(1).credentials(secret("a")).join(Kept::new()).unwrap();
            leader.join().unwrap();
        });
    });
}

/// Returns whether the other side has not closed a connection.
fn is_open(mut socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    loop {
        match socket.read(&mut [0; 1024]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

// INV-83
#[test]
fn a_job_starts_despite_any_number_of_silent_connections() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let ours = Identity::Certificates(certificates(folder.path(), "ours"));
        for identity in [secret("a"), ours] {
            let mut silent = Vec::new();
            let pair = mesh_disturbed_by(&identity, |port| {
                silent.extend((0..128).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()));
            });
            // This is before connections that have a place are closed because they send nothing.
            let open = silent.iter().filter(|socket| is_open(socket)).count();
            assert!((1..=64).contains(&open), "{open} of {identity:?}");
            works(&pair);
        }
    });
}

// INV-83
#[test]
fn a_job_starts_while_silent_connections_arrive_one_after_another() {
    watched(|| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pair = disturbed(|port| {
                let (begun, begins) = std::sync::mpsc::channel();
                let over = &over;
                scope.spawn(move || {
                    let mut silent = VecDeque::new();
                    while !over.load(Ordering::Acquire) {
                        silent.extend(TcpStream::connect(("127.0.0.1", port)));
                        if silent.len() > 200 {
                            silent.pop_front();
                            let _ = begun.send(());
                        }
                    }
                });
                begins.recv_timeout(Duration::from_secs(40)).unwrap();
            });
            over.store(true, Ordering::Release);
            works(&pair);
        });
    });
}

#[test]
fn a_silent_peer_gets_an_error_and_is_disconnected() {
    watched(|| {
        let mut silent = Vec::new();
        let pair = disturbed(|port| {
            for _ in 0..65 {
                silent.push(TcpStream::connect(("127.0.0.1", port)).unwrap());
            }
        });
        works(&pair);
        let deadline = Deadline::after(Duration::from_secs(30));
        let reasons: Vec<_> = silent
            .into_iter()
            .map(|mut socket| {
                socket.set_read_timeout(Some(deadline.remaining().max(Duration::from_millis(1)))).unwrap();
                let mut all = Vec::new();
                socket.read_to_end(&mut all).unwrap();
                refusal_in(&all).0
            })
            .collect();
        // The oldest connections have made room: one for the last connection, and one for the second worker.
        assert_eq!(reasons[..2], [Reason::Crowded; 2]);
        assert!(reasons[2..].iter().all(|reason| *reason == Reason::Late), "{reasons:?}");
    });
}

#[test]
fn a_peer_without_a_certificate_of_the_ca_is_refused_and_the_world_continues() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let ours = Identity::Certificates(certificates(folder.path(), "ours"));
        let theirs = Identity::Certificates(certificates(folder.path(), "theirs"));
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let port = listener.address().unwrap().port();
        let join = |rendezvous: Rendezvous| {
            let kept = Kept::new();
            (rendezvous.join(kept.clone()).unwrap(), kept)
        };
        let pair = std::thread::scope(|scope| {
            let leader = rendezvous(0, port).credentials(ours.clone()).listener(listener);
            let leader = scope.spawn(move || join(leader));
            let (reason, text) = refused(rendezvous(1, port).credentials(theirs));
            assert_eq!(reason, Reason::Secret);
            assert!(text.contains("TLS: ") && text.contains("certificates of one CA"), "{text}");
            let (reason, text) = refused(rendezvous(1, port));
            assert_eq!(reason, Reason::Protocol, "{text}");
            let second = join(rendezvous(1, port).credentials(ours));
            [leader.join().unwrap(), second]
        });
        works(&pair);
    });
}
