//! Servers and their clients over real sockets.

use crate::support::{self, PATIENCE, certificates, client, cluster, patient, ps, server};
use distribute_cluster::resolver::SimpleClusterResolver;
use distribute_cluster::{ClusterSpec, Deadline, Job, Task};
use distribute_net::{Certificates, ConnectError, Credentials, Identity, Message, Secret};
use distribute_rpc::doctor::{State, examine};
use distribute_rpc::{
    Call, CallError, Client, ClientBuilder, FaultKind, Reply, Server, ServerBuilder, ServerError,
    ShutdownReason,
};
use distribute_testing::{SplitMix, watched};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

fn text(answer: Message) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

#[test]
fn services_are_called_by_name_and_get_their_caller() {
    watched(|| {
        let greet = |call: Call, reply: Reply| {
            let text = format!("{} says {}", call.caller, String::from_utf8_lossy(&call.message.body));
            reply.answer(call.message.head, text);
        };
        let server = server(|builder| builder.service("greet", greet));
        let (one, two) = (client(&server, Job::Chief.task(0)), client(&server, Job::Worker.task(1)));
        for (client, who) in [(&one, "chief 0"), (&two, "worker 1")] {
            let answer = client.call("greet", Message::new("head", "hello"), PATIENCE).unwrap();
            assert_eq!(answer.head, "head");
            assert_eq!(text(answer), format!("{who} says hello"));
        }
        assert_eq!(server.connections(), 2);
        let error = one.call("mystery", Message::default(), PATIENCE).unwrap_err();
        let CallError::Failed { fault, .. } = &error else { panic!("{error}") };
        assert_eq!(fault.kind, FaultKind::NoSuchService);
        let error = error.to_string();
        assert!(error.starts_with(&format!("mystery of ps 0 at {} failed: ", server.address())), "{error}");
        assert!(error.ends_with(r#"ps 0 has no service "mystery", it has doctor, greet, server"#), "{error}");
    });
}

#[test]
fn large_bodies_of_many_threads_go_over_one_connection() {
    watched(|| {
        let server = server(|builder| builder.service("echo", support::echo));
        let client = Arc::new(client(&server, Job::Chief.task(0)));
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let client = client.clone();
                scope.spawn(move || {
                    let mut random = SplitMix(thread);
                    for _ in 0..40 {
                        let length = random.of(&[0, 1, 100, 70_000, 700_000]);
                        let body = vec![thread as u8; length];
                        let head = random.bits().to_le_bytes().to_vec();
                        let message = Message::new(head, body);
                        assert_eq!(client.call("echo", message.clone(), PATIENCE).unwrap(), message);
                    }
                });
            }
        });
    });
}

/// Returns a handler that stores the replies of calls until the test answers them.
fn kept() -> (impl Fn(Call, Reply) + Send + Sync, mpsc::Receiver<(Call, Reply)>) {
    let (keep, kept) = mpsc::channel();
    let keep = Mutex::new(keep);
    (move |call, reply| drop(keep.lock().unwrap().send((call, reply))), kept)
}

#[test]
fn answers_may_come_later_and_in_any_order() {
    watched(|| {
        let (keep, kept) = kept();
        let server = server(|builder| builder.service("later", keep));
        let client = client(&server, Job::Chief.task(0));
        let start = |body: &'static str| client.start("later", Message::new("", body), PATIENCE).unwrap();
        let started: Vec<_> = ["a", "b", "c"].map(start).into();
        let mut replies: Vec<_> = (0..3).map(|_| kept.recv_timeout(PATIENCE).unwrap()).collect();
        assert!(started.iter().all(|call| !call.is_answered()));
        replies.rotate_left(1);
        for (call, reply) in replies.into_iter().rev() {
            reply.answer("", call.message.body);
        }
        let answers: Vec<_> = started.into_iter().map(|call| text(call.wait(PATIENCE).unwrap())).collect();
        assert_eq!(answers, ["a", "b", "c"]);
    });
}

#[test]
fn a_service_that_fails_panics_or_lets_go_fails_the_call_alone() {
    watched(|| {
        let moody = |call: Call, reply: Reply| match &call.message.body[..] {
            b"fail" => reply.fail("the table has no row 7"),
            b"panic" => panic!("on purpose"),
            b"panic later" => drop(std::thread::spawn(move || {
                let _reply = reply;
                panic!("on purpose");
            })),
            b"drop" => drop(reply),
            _ => reply.answer("", "fine"),
        };
        let server = server(|builder| builder.service("moody", moody));
        let client = client(&server, Job::Chief.task(0));
        let call = |body: &'static str| client.call("moody", Message::new("", body), PATIENCE);
        for (body, kind, says) in [
            ("fail", FaultKind::Failed, "failed: the table has no row 7"),
            ("panic", FaultKind::Panicked, "moody panicked: see the log of ps 0"),
            ("panic later", FaultKind::Panicked, "moody panicked: see the log of ps 0"),
            ("drop", FaultKind::Dropped, "moody of ps 0 dropped the call without an answer"),
        ] {
            let error = call(body).unwrap_err();
            let CallError::Failed { fault, .. } = &error else { panic!("{error}") };
            assert_eq!(fault.kind, kind);
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(text(call("").unwrap()), "fine");
        }
    });
}

// INV-33
#[test]
fn a_timed_out_call_keeps_its_slot_until_it_is_answered() {
    watched(|| {
        let (keep, kept) = kept();
        let server = server(|builder| builder.service("later", keep));
        let chief = Job::Chief.task(0);
        let client = support::clients(&server, chief).window(2).connect(&ps(), PATIENCE).unwrap();
        let soon = Duration::from_millis(30);
        for _ in 0..2 {
            let error = client.call("later", Message::default(), soon).unwrap_err();
            assert!(matches!(error, CallError::TimedOut { .. }), "{error}");
            let at = server.address();
            let text = format!("later of ps 0 at {at} has not answered in 0.");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
        let error = client.call("later", Message::default(), soon).unwrap_err();
        assert!(matches!(error, CallError::WindowFull { window: 2, .. }), "{error}");
        assert!(error.to_string().contains("2 calls of this connection wait for answers"), "{error}");
        // A late answer frees its place in the window, and no call receives it.
        let (_, reply) = kept.recv_timeout(PATIENCE).unwrap();
        reply.answer("", "too late");
        let started = client.start("later", Message::default(), PATIENCE).unwrap();
        let _second = kept.recv_timeout(PATIENCE).unwrap();
        kept.recv_timeout(PATIENCE).unwrap().1.answer("", "in time");
        assert_eq!(text(started.wait(PATIENCE).unwrap()), "in time");
    });
}

// INV-33
#[test]
fn a_lost_connection_fails_all_calls_at_once_including_those_waiting_for_the_window() {
    watched(|| {
        let (keep, kept) = kept();
        let server = server(|builder| builder.service("later", keep));
        let chief = Job::Chief.task(0);
        let client = support::clients(&server, chief).window(3).connect(&ps(), PATIENCE).unwrap();
        let begun = std::sync::Barrier::new(6);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..5)
                .map(|_| {
                    scope.spawn(|| {
                        begun.wait();
                        client.call("later", Message::default(), Duration::from_secs(3600)).unwrap_err()
                    })
                })
                .collect();
            begun.wait();
            let _replies: Vec<_> = (0..3).map(|_| kept.recv_timeout(PATIENCE).unwrap()).collect();
            server.stop();
            for error in threads.into_iter().map(|thread| thread.join().unwrap()) {
                assert!(matches!(error, CallError::Lost { .. }), "{error}");
                assert!(error.to_string().starts_with("the connection to ps 0 at 127.0.0.1:"), "{error}");
                assert!(
                    error.to_string().contains("was lost while later was called: it has ended"),
                    "{error}"
                );
            }
        });
        let error = client.call("later", Message::default(), PATIENCE).unwrap_err();
        assert!(matches!(error, CallError::Lost { .. }), "{error}");
    });
}

#[test]
fn replies_detect_that_their_caller_is_disconnected() {
    watched(|| {
        let (keep, kept) = kept();
        let server = server(|builder| builder.service("later", keep));
        let client = client(&server, Job::Chief.task(0));
        drop(client.start("later", Message::default(), PATIENCE).unwrap());
        let (_, reply) = kept.recv_timeout(PATIENCE).unwrap();
        assert!(reply.is_connected());
        drop(client);
        support::until("the connection's end", || server.connections() == 0);
        assert!(!reply.is_connected());
        reply.answer("", "to nobody");
    });
}

// SRV-1
#[test]
fn srv_1_a_server_listens_when_created_answers_when_started_and_stops_on_request() {
    watched(|| {
        let local = Server::create_local_server().unwrap();
        assert_eq!(local.task(), &Task::new("local", 0));
        assert_eq!(local.target(), format!("tcp://{}", local.address()));
        assert_ne!(local.address().port(), 0);
        assert_eq!(local.join_timeout(Duration::from_millis(20)).unwrap(), None);

        let mut server = builder(cluster()).protocol("grpc").build().unwrap();
        assert!(server.target().starts_with("grpc://127.0.0.1:"));
        let chief = Job::Chief.task(0);
        let early = support::clients(&server, chief.clone()).connect(&ps(), Duration::from_millis(100));
        assert!(matches!(early, Err(CallError::Connect(_))), "{early:?}");
        server.start().unwrap();
        server.start().unwrap();
        let stopper = server.stopper();
        let join = std::thread::spawn(move || stopper.join().unwrap());
        drop(client(&server, chief));
        server.stop();
        assert_eq!(join.join().unwrap(), ShutdownReason::Stopped);
        assert_eq!(server.join().unwrap(), ShutdownReason::Stopped);

        let server = Server::new(cluster(), Some(Job::Ps), Some(0)).unwrap();
        let stopper = server.stopper();
        drop(server);
        assert_eq!(stopper.join().unwrap(), ShutdownReason::Dropped);
    });
}

fn builder(cluster: ClusterSpec) -> ServerBuilder {
    Server::builder(cluster).task(ps()).credentials(Identity::None)
}

#[test]
fn an_unneeded_server_exits() {
    watched(|| {
        let lease = Duration::from_millis(300);
        let server = server(|builder| builder.lease(lease));
        let chief = client(&server, Job::Chief.task(0));
        assert_eq!(server.join_timeout(3 * lease).unwrap(), None);
        // Connections of the server's own job do not count.
        let _peer = client(&server, Job::Ps.task(1));
        drop(chief);
        assert_eq!(server.join().unwrap(), ShutdownReason::Left(lease));

        let server = support::server(|builder| builder.lease(lease));
        assert_eq!(server.join().unwrap(), ShutdownReason::Left(lease));
    });
}

#[test]
fn the_chief_stops_servers_and_no_other_task() {
    watched(|| {
        let server = server(|builder| builder);
        let worker = client(&server, Job::Worker.task(0));
        let error = worker.stop_server(PATIENCE).unwrap_err();
        let CallError::Failed { fault, .. } = &error else { panic!("{error}") };
        assert_eq!(fault.kind, FaultKind::NotAllowed);
        assert!(error.to_string().contains("worker 0 may not stop this server"), "{error}");
        assert_eq!(server.join_timeout(Duration::from_millis(20)).unwrap(), None);
        let chief = client(&server, Job::Chief.task(0));
        chief.stop_server(PATIENCE).unwrap();
        assert_eq!(server.join().unwrap(), ShutdownReason::Chief(Job::Chief.task(0)));
        // The connections of the others end.
        support::until("the connection's end", || server.connections() == 0);
        let error = worker.call("doctor", Message::default(), PATIENCE).unwrap_err();
        assert!(matches!(error, CallError::Lost { .. }), "{error}");
    });
}

// SRV-2
#[test]
fn srv_2_workers_and_parameter_servers_serve_and_others_do_not() {
    let of = |task: Task| {
        let resolver = SimpleClusterResolver::new(cluster()).with_task(task);
        Server::of_resolver(&resolver).map(drop).map_err(|error| error.to_string())
    };
    of(ps()).unwrap();
    of(Job::Worker.task(1)).unwrap();
    assert_eq!(
        of(Job::Chief.task(0)).unwrap_err(),
        "this process is chief 0, but only workers and parameter servers start servers"
    );
    let alone = SimpleClusterResolver::new(ClusterSpec::new());
    let error = Server::of_resolver(&alone).unwrap_err();
    assert!(matches!(error, ServerError::NotServing { task: None }), "{error}");
}

#[test]
fn invalid_servers_and_calls_are_refused_before_sending() {
    watched(|| {
        for (name, says) in [("", "1 to 255 bytes"), ("doctor", "a service of this name exists already")] {
            let error = builder(cluster()).service(name, support::echo).start().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let server = server(|builder| builder);
        let taken = ClusterSpec::from_lists([("ps", [server.address().to_string()])]).unwrap();
        let error = builder(taken).start().unwrap_err().to_string();
        assert!(error.starts_with("ps 0 cannot listen at 127.0.0.1:") && error.contains("another program"));
        let far = ClusterSpec::from_lists([("ps", ["192.0.2.1:0"])]).unwrap();
        let error = builder(far).start().unwrap_err().to_string();
        assert!(error.contains("DISTRIBUTE_SECRET"), "{error}");

        let client = client(&server, Job::Chief.task(0));
        let error = client.start("doctor", Message::new(vec![0; 17 << 20], ""), PATIENCE).unwrap_err();
        assert!(matches!(error, CallError::TooLong { what: "a head", .. }), "{error}");
        let error = client.start(&"x".repeat(256), Message::default(), PATIENCE).unwrap_err();
        assert!(matches!(error, CallError::TooLong { what: "a name", .. }), "{error}");
        client.call("doctor", Message::default(), PATIENCE).unwrap();
        let nobody = support::clients(&server, ps()).connect(&Job::Ps.task(4), PATIENCE).unwrap_err();
        assert_eq!(nobody.to_string(), r#"the cluster has no ps 4: "ps" has task 0 alone"#);
    });
}

#[test]
fn secrets_and_certificates_decide_which_peers_may_call() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let secret = |digit: &str| Identity::Secret(Secret::from_hex(&digit.repeat(64), "a test").unwrap());
        let ours = Identity::Certificates(certificates(folder.path(), "ours"));
        let theirs = Identity::Certificates(certificates(folder.path(), "theirs"));
        for (server_has, client_has) in [(secret("a"), secret("b")), (ours, theirs)] {
            let server = server(|builder| builder.credentials(server_has.clone()));
            let clients = |identity: &Identity| {
                let clients = support::clients(&server, Job::Chief.task(0)).credentials(identity.clone());
                clients.connect(&ps(), PATIENCE)
            };
            clients(&server_has).unwrap().call("doctor", Message::default(), PATIENCE).unwrap();
            for stranger in [&client_has, &Identity::None] {
                let error = clients(stranger).unwrap_err();
                let CallError::Connect(refused) = &error else { panic!("{error}") };
                assert!(matches!(**refused, ConnectError::Refused { .. }), "{error}");
            }
        }
    });
}

#[test]
fn a_caller_with_too_many_open_calls_is_disconnected_and_others_are_not() {
    watched(|| {
        let (keep, _kept) = kept();
        let server = server(|builder| builder.max_calls(4).service("later", keep));
        let (greedy, modest) = (client(&server, Job::Chief.task(0)), client(&server, Job::Worker.task(0)));
        let calls: Vec<_> =
            (0..5).filter_map(|_| greedy.start("later", Message::default(), PATIENCE).ok()).collect();
        for call in calls {
            assert!(matches!(call.wait(PATIENCE).unwrap_err(), CallError::Lost { .. }));
        }
        modest.call("doctor", Message::default(), PATIENCE).unwrap();
    });
}

// INV-28
#[test]
fn calls_that_wait_take_no_more_memory_than_they_may_and_leave_some_for_other_callers() {
    watched(|| {
        let (keep, kept) = kept();
        let server = server(|builder| builder.max_waiting_bytes(1_000_000).service("later", keep));
        let (greedy, modest) = (client(&server, Job::Chief.task(0)), client(&server, Job::Worker.task(0)));
        let large = || Message::new("", vec![1; 100_000]);
        let mut calls: Vec<_> = (0..7).map(|_| greedy.start("later", large(), PATIENCE).unwrap()).collect();
        for refused in calls.drain(4..) {
            let error = refused.wait(PATIENCE).unwrap_err();
            let CallError::Failed { fault, .. } = &error else { panic!("{error}") };
            assert_eq!(fault.kind, FaultKind::NoRoom);
            let text = error.to_string();
            assert!(
                text.contains("later of ps 0 at 127.0.0.1:") && text.contains("of 1000000 bytes"),
                "{text}"
            );
            assert!(text.contains("no memory for a call of 1000"), "{text}");
        }
        // Calls of others are answered.
        let echo = || Message::new("echo", vec![2; 400_000]);
        assert_eq!(modest.call("doctor", echo(), PATIENCE).unwrap().body.len(), 400_000);
        // An answer makes room.
        for _ in 0..4 {
            kept.recv_timeout(PATIENCE).unwrap().1.answer("", "");
        }
        calls.into_iter().for_each(|call| drop(call.wait(PATIENCE).unwrap()));
        assert_eq!(greedy.call("doctor", echo(), PATIENCE).unwrap().body.len(), 400_000);
    });
}

// INV-28
#[test]
fn calls_of_a_disconnected_caller_take_no_memory() {
    watched(|| {
        let (busy, begun) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let (busy, goes) = (Mutex::new(busy), Mutex::new(goes));
        let wait = move |_call, reply: Reply| {
            let _ = busy.lock().unwrap().send(());
            let _ = goes.lock().unwrap().recv_timeout(PATIENCE);
            reply.answer("", "");
        };
        let server = server(|builder| builder.max_waiting_bytes(1_000_000).service("wait", wait));
        let first = client(&server, Job::Chief.task(0));
        for _ in 0..4 {
            drop(first.start("wait", Message::new("", vec![1; 100_000]), PATIENCE).unwrap());
        }
        begun.recv_timeout(PATIENCE).unwrap();
        let second = client(&server, Job::Worker.task(0));
        let all = || second.call("doctor", Message::new("echo", vec![2; 900_000]), PATIENCE);
        support::until("room being taken", || all().is_err());
        // Those that have not begun are forgotten with their connection.
        drop(first);
        drop(go);
        support::until("the end of its connection", || server.connections() == 1);
        all().unwrap();
    });
}

#[test]
fn a_server_accepts_the_configured_number_of_connections() {
    watched(|| {
        let server = server(|builder| builder.max_connections(1));
        let first = client(&server, Job::Chief.task(0));
        let connect = |patience| support::clients(&server, Job::Worker.task(0)).connect(&ps(), patience);
        let error = connect(Duration::from_millis(300)).unwrap_err().to_string();
        assert!(error.contains("this server has reached its maximum number of connections"), "{error}");
        drop(first);
        connect(PATIENCE).unwrap().call("doctor", Message::default(), PATIENCE).unwrap();
    });
}

// INV-83
#[test]
fn no_caller_takes_all_connections_of_a_server() {
    watched(|| {
        let server = server(|builder| builder.max_connections(8));
        let connect = |from, patience| support::clients(&server, from).connect(&ps(), patience);
        let greedy: Vec<_> = (0..4).map(|_| connect(Job::Chief.task(0), PATIENCE).unwrap()).collect();
        let error = connect(Job::Chief.task(0), Duration::from_millis(300)).unwrap_err().to_string();
        assert!(error.contains("has reached its share of this server's connections"), "{error}");
        let other = connect(Job::Worker.task(0), PATIENCE).unwrap();
        other.call("doctor", Message::default(), PATIENCE).unwrap();
        drop(greedy);
        connect(Job::Chief.task(0), PATIENCE).unwrap().call("doctor", Message::default(), PATIENCE).unwrap();
    });
}

#[test]
fn a_client_may_wait_for_a_server_that_starts_later() {
    watched(|| {
        let port = distribute_testing::Port::reserve();
        let at = port.address().to_string();
        let cluster = ClusterSpec::from_lists([("ps", [at])]).unwrap();
        let clients = ClientBuilder::new(cluster.clone(), Job::Chief.task(0))
            .credentials(Identity::None)
            .settings(patient());
        std::thread::scope(|scope| {
            let client = scope.spawn(move || clients.connect(&ps(), PATIENCE).unwrap());
            let early = Deadline::after(Duration::from_millis(50));
            support::until("some time", || early.has_passed());
            let _server = builder(cluster).start().unwrap();
            let client: Client = client.join().unwrap();
            client.call("doctor", Message::default(), PATIENCE).unwrap();
        });
    });
}

// INV-81
#[test]
fn a_job_of_another_name_is_refused_and_the_doctor_is_not() {
    watched(|| {
        let of = |job: &str| Credentials::from(Identity::None).job(job);
        let server = server(|builder| builder.credentials(of("letters")));
        let clients = support::clients(&server, Job::Chief.task(0));
        let error = clients.clone().connect(&ps(), PATIENCE).unwrap_err().to_string();
        assert!(
            error.starts_with("ps 0 at ")
                && error.contains("another job than \"it-")
                && error.contains("DISTRIBUTE_JOB"),
            "{error}"
        );
        let error = clients.clone().credentials(of("digits")).connect(&ps(), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("another job than \"digits\""), "{error}");
        clients.clone().credentials(of("letters")).connect(&ps(), PATIENCE).unwrap();
        let doctor = support::clients(&server, Task::new("doctor", 0));
        let one = ClusterSpec::from_lists([("ps", [server.address().to_string()])]).unwrap();
        let report = examine(&doctor, &one, &Task::new("doctor", 0), PATIENCE, &mut |_| {});
        assert!(report.links.iter().all(|link| matches!(link.state, State::Open { .. })), "{report:?}");
    });
}

// INV-81
#[test]
fn a_certificate_for_one_task_is_refused_for_another() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let owners =
            [("ps", Some("ps/0")), ("chief", Some("chief/0")), ("worker", Some("worker/0")), ("any", None)];
        let [of_ps, of_chief, of_worker, of_any] = distribute_testing::certificates_of(folder.path(), owners)
            .map(|[ca, certificate, key]| Identity::Certificates(Certificates { ca, certificate, key }));
        let server = server(|builder| builder.credentials(of_ps.clone()));
        let connect = |task: Task, identity: &Identity| {
            support::clients(&server, task).credentials(identity.clone()).connect(&ps(), PATIENCE)
        };
        // A worker that would end the server as the chief.
        let error = connect(Job::Chief.task(0), &of_worker).unwrap_err().to_string();
        assert!(error.contains("its certificate names worker/0, but it claims to be chief 0"), "{error}");
        for (task, identity) in [
            (Job::Worker.task(0), &of_worker),
            (Job::Chief.task(0), &of_chief),
            (Job::Worker.task(1), &of_any),
        ] {
            connect(task, identity).unwrap();
        }
        drop(server);
        // In the other direction: the process at this address is not the task that is called.
        let server = support::server(|builder| builder.credentials(of_worker.clone()));
        let error = support::clients(&server, Job::Chief.task(0)).credentials(of_chief);
        let error = error.connect(&ps(), PATIENCE).unwrap_err().to_string();
        assert!(error.contains("its certificate names worker/0, but it claims to be ps 0"), "{error}");
    });
}
