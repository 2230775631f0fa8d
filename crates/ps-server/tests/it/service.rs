//! A server behind a port does the same as its tables, and executes each request once.

use crate::support::{
    self, PATIENCE, clients, cluster, connection, count, counters, dynamic, matrix, patient, ps, push, rows,
    server, until,
};
use distribute_cluster::{Job, Stopwatch, Task};
use distribute_net::{Certificates, Identity, Message, SharedMemory};
use distribute_optim::{Adam, RuleSpec, Sgd, Step};
use distribute_ps_server::{Connection, ParameterServer, SERVICE};
use distribute_ps_tables::{
    Channel, ChannelError, LocalChannel, Push, RefusalKind, Request, Response, StateColumn, TableSpec,
    Tables, Version,
};
use distribute_rpc::{Call, ClientBuilder, Reply, Server, Service};
use distribute_tensor::{HostTensor, Wire, Write};
use distribute_testing::watched;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns requests of each kind, some of which are refused.
fn requests() -> Vec<Request> {
    let (w, ids) = (|| "w".to_owned(), || "ids".to_owned());
    let at = |step| Push::at(Step::after(step, 0.5)).finite();
    let values: Vec<f32> = (0..600).map(|x| x as f32).collect();
    let rule = RuleSpec::Adam(Adam::default());
    vec![
        Request::Create(TableSpec::values("w", matrix(&values, 3)).rule(rule)),
        dynamic("ids"),
        Request::Create(TableSpec::values("w", matrix(&values, 2))),
        Request::Push { table: w(), push: at(0), gradient: matrix(&values, 3) },
        Request::PushRows { table: w(), push: at(1), rows: vec![9, 9, 1], gradient: matrix(&values[..9], 3) },
        Request::PushRows { table: w(), push: at(1), rows: vec![9, 200], gradient: matrix(&values[..6], 3) },
        Request::Push { table: w(), push: at(2), gradient: matrix(&[f32::NAN; 600], 3) },
        Request::Write { table: w(), how: Write::Max, value: matrix(&[1.; 600], 3) },
        Request::WriteRows { table: w(), how: Write::Sub, rows: vec![0], values: matrix(&[1., 2., 3.], 3) },
        push("ids", -9),
        push("nothing", 0),
        Request::ReadRows { table: w(), rows: vec![199, 0, 0] },
        Request::ReadRows { table: ids(), rows: vec![-9, 9] },
        Request::Read { table: w(), known: None, may_round: false },
        Request::Read { table: w(), known: Some(Version { created: 0, writes: 0 }), may_round: false },
        Request::SetRule { table: w(), rule: RuleSpec::Sgd(Sgd) },
        Request::StateRows { table: w(), rows: 5..7 },
        Request::StatePart { table: ids(), part: 7 },
        Request::StateColumn { table: ids(), part: 7, column: StateColumn::Uses },
        Request::StateColumn { table: ids(), part: 7, column: StateColumn::Values },
        Request::StateColumn { table: ids(), part: 7, column: StateColumn::Slot("nothing".to_owned()) },
        Request::Evict { table: ids(), now: 1 },
        Request::List,
        Request::Batch(vec![
            push("ids", 3),
            Request::Read { table: ids(), known: None, may_round: false },
            Request::List,
        ]),
        Request::Remove { table: w() },
        Request::Batch(vec![Request::Batch(vec![])]),
        Request::Batch(vec![]),
    ]
}

/// Returns an answer as text, without the server and without names of tables.
fn words(answer: Result<Response, ChannelError>) -> String {
    match answer {
        Ok(Response::Value(read)) => format!("{:?} {}", read.value, read.version.writes),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_connection_answers_as_tables_of_this_process_do() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let [ca, certificate, key] = distribute_testing::certificates(folder.path(), "job");
        let certificates = Identity::Certificates(Certificates { ca, certificate, key });
        for identity in [Identity::None, certificates] {
            let server = server(cluster(0), ParameterServer::new(), identity.clone());
            let remote = Connection::new(clients(server.cluster(), 1, identity), ps());
            let local = LocalChannel::new(0, Arc::new(Tables::new()));
            for request in requests() {
                let (there, here) =
                    (remote.call(request.clone(), PATIENCE), local.call(request.clone(), PATIENCE));
                assert_eq!(words(there), words(here), "{}", request.describe());
            }
        }
    });
}

// More is in flight than a caller may have at once, so the server has to wait.
#[test]
fn large_bodies_are_the_same_through_shared_memory_and_sockets() {
    watched(|| {
        for shared in [SharedMemory::Auto, SharedMemory::Never] {
            let server = server(cluster(0), ParameterServer::new(), Identity::None);
            let clients = clients(server.cluster(), 0, Identity::None).shared_memory(shared);
            let ps = Connection::new(clients, ps());
            let values: Vec<f32> = (0..1_000_000).map(|x| x as f32).collect();
            let rule = RuleSpec::Sgd(Sgd);
            ps.call(Request::Create(TableSpec::values("w", matrix(&values, 4)).rule(rule)), PATIENCE)
                .unwrap();
            let push = Push::at(Step::after(0, 0.5));
            ps.call(Request::Push { table: "w".into(), push, gradient: matrix(&values, 4) }, PATIENCE)
                .unwrap();
            let half: Vec<f32> = values.iter().map(|x| x / 2.).collect();
            let read = || Request::Read { table: "w".into(), known: None, may_round: false };
            let value = |answer: Response| match answer {
                Response::Value(read) => assert_eq!(read.value, matrix(&half, 4)),
                other => panic!("{other:?}"),
            };
            let waited = Stopwatch::start();
            let started: Vec<_> = (0..40).map(|_| ps.start(read(), PATIENCE).unwrap()).collect();
            started.into_iter().for_each(|one| value(one.wait().unwrap()));
            assert!(waited.seconds() < 60.);
            let both = ps.call(Request::Batch(vec![read(), read()]), PATIENCE).unwrap();
            let Response::Batch(both) = both else { panic!("{both:?}") };
            both.into_iter().for_each(|one| value(one.unwrap()));
            let rows: Vec<i64> = (0..100_000).rev().collect();
            let expected: Vec<f32> =
                rows.iter().flat_map(|row| &half[*row as usize * 4..][..4]).copied().collect();
            assert_eq!(support::rows(&ps, "w", rows), matrix(&expected, 4));
        }
    });
}

#[test]
fn calls_of_several_servers_overlap_and_errors_name_the_server() {
    watched(|| {
        let servers: Vec<_> =
            (0..2).map(|_| server(cluster(0), ParameterServer::new(), Identity::None)).collect();
        let channels: Vec<Box<dyn Channel>> =
            servers.iter().map(|server| Box::new(connection(server.cluster(), 0)) as _).collect();
        let started: Vec<_> =
            channels.iter().map(|channel| channel.start(Request::List, PATIENCE).unwrap()).collect();
        for call in started {
            assert_eq!(call.wait().unwrap(), Response::Tables(Vec::new()));
        }
        let error = channels[1].call(push("w", 0), PATIENCE).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ps 0: push_rows: there is no table w; create it first, on this server"
        );
    });
}

#[test]
fn a_thread_may_start_more_than_there_is_room_for_before_it_waits() {
    watched(|| {
        let server = server(cluster(0), ParameterServer::new(), Identity::None);
        let clients = clients(server.cluster(), 0, Identity::None);
        let narrow = Connection::builder(clients).calls(3).bytes(1 << 10).open(ps());
        narrow.call(counters("c", 300), PATIENCE).unwrap();
        // More calls and bytes than may be in flight, and more numbers than a server remembers.
        let rows = |row: i64| Request::Batch((0..30).map(|turn| count("c", (row + turn) % 300)).collect());
        let started: Vec<_> = (0..300).map(|row| narrow.start(rows(row), PATIENCE).unwrap()).collect();
        // In any order, and by any thread.
        let (one, other): (Vec<_>, Vec<_>) =
            started.into_iter().rev().enumerate().partition(|(number, _)| number % 2 == 0);
        std::thread::scope(|scope| {
            for half in [one, other] {
                scope.spawn(|| half.into_iter().for_each(|(_, call)| drop(call.wait().unwrap())));
            }
        });
        let all = HostTensor::new(vec![30i64; 300], [300, 1]).unwrap();
        assert_eq!(support::rows(&narrow, "c", (0..300).collect()), all);
    });
}

#[test]
fn rows_and_gradients_are_sent_in_the_type_of_the_connection() {
    watched(|| {
        let server = server(cluster(0), ParameterServer::new(), Identity::None);
        let clients = clients(server.cluster(), 0, Identity::None);
        let half = Connection::builder(clients).wire(Wire::Bf16).open(ps());
        let third = 1f32 / 3.;
        let create = TableSpec::values("w", matrix(&[third; 4], 2)).rule(RuleSpec::Sgd(Sgd));
        half.call(Request::Create(create), PATIENCE).unwrap();
        let rounded = 0.33398438f32;
        assert_eq!(rows(&half, "w", vec![1]), matrix(&[rounded; 2], 2));
        let whole = connection(server.cluster(), 1);
        assert_eq!(rows(&whole, "w", vec![1]), matrix(&[third; 2], 2));
        let at = Push::at(Step::after(0, 1.));
        let gradient = matrix(&[third; 4], 2);
        half.call(Request::Push { table: "w".into(), push: at, gradient }, PATIENCE).unwrap();
        assert_eq!(rows(&whole, "w", vec![0]), matrix(&[third - rounded; 2], 2));
    });
}

// INV-52
#[test]
fn calls_wait_for_a_restarting_server_and_are_executed_once() {
    watched(|| {
        let tables = ParameterServer::new();
        let mut server = Some(support::server(cluster(0), tables.clone(), Identity::None));
        let known = server.as_ref().unwrap().cluster().clone();
        let first = connection(&known, 0);
        first.call(counters("n", 3), PATIENCE).unwrap();
        first.call(dynamic("ids"), PATIENCE).unwrap();
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|worker| {
                    let (known, stop, done) = (&known, &stop, &done);
                    scope.spawn(move || {
                        let ps = connection(known, worker as usize);
                        let mut counted = 0u64;
                        while !stop.load(Ordering::SeqCst) {
                            // Several requests in flight, one of them a batch.
                            let requests = [
                                count("n", worker),
                                Request::Batch(vec![count("n", worker), Request::List, push("ids", worker)]),
                                push("ids", worker),
                            ];
                            let calls = requests.map(|request| ps.start(request, PATIENCE).unwrap());
                            for call in calls {
                                if let Response::Batch(all) = call.wait().unwrap() {
                                    all.into_iter().for_each(|one| drop(one.unwrap()));
                                }
                            }
                            counted += 2;
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                        counted
                    })
                })
                .collect();
            for life in 0..8 {
                let before = done.load(Ordering::SeqCst);
                until("progress", || done.load(Ordering::SeqCst) > before + 20 * life);
                drop(server.take());
                server = Some(support::server(known.clone(), tables.clone(), Identity::None));
            }
            stop.store(true, Ordering::SeqCst);
            let counted: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let expected: Vec<i64> = counted.iter().map(|n| *n as i64).collect();
            assert_eq!(rows(&first, "n", vec![0, 1, 2]).to_vec::<i64>().unwrap(), expected);
            let expected: Vec<f64> = counted.iter().map(|n| *n as f64).collect();
            assert_eq!(rows(&first, "ids", vec![0, 1, 2]).to_vec::<f64>().unwrap(), expected);
        });
    });
}

#[test]
fn a_server_that_does_not_restart_is_an_error_at_the_deadline() {
    watched(|| {
        let server = server(cluster(0), ParameterServer::new(), Identity::None);
        let ps = connection(server.cluster(), 0);
        ps.call(counters("n", 1), PATIENCE).unwrap();
        drop(server);
        for threads in [1, 4] {
            let waited = Stopwatch::start();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let error = ps.call(count("n", 0), Duration::from_millis(600)).unwrap_err();
                        assert!(matches!(error, ChannelError::TimedOut { .. }), "{error}");
                        let says = "add of table n: no answer from ps 0 within 600ms: ";
                        assert!(error.to_string().starts_with(says), "{error}");
                    });
                }
            });
            assert!(waited.elapsed() < Duration::from_secs(8), "{:?}", waited.elapsed());
        }
    });
}

#[test]
fn impossible_requests_fail_before_they_are_sent() {
    watched(|| {
        let server = server(cluster(0), ParameterServer::new(), Identity::None);
        let clients = clients(server.cluster(), 0, Identity::None);
        let ps = Connection::builder(clients).calls(2).open(ps());
        ps.call(counters("n", 1), PATIENCE).unwrap();
        let many = ps.call(Request::Batch(vec![count("n", 0); 1025]), PATIENCE).unwrap_err();
        assert_eq!(
            many.to_string(),
            "batch of 1025, the first of them add of table n, for ps 0: the number of changes is 1025, but \
             the maximum is 1024; request less at once"
        );
        ps.call(Request::Batch(vec![count("n", 0); 1024]), PATIENCE).unwrap();
        assert_eq!(rows(&ps, "n", vec![0]).to_vec::<i64>().unwrap(), [1024]);
    });
}

/// A server that answers no call.
#[derive(Default)]
struct Silent(Mutex<Vec<Reply>>);

impl Service for Silent {
    fn call(&self, _call: Call, reply: Reply) {
        self.0.lock().unwrap().push(reply);
    }
}

#[test]
fn without_answers_nothing_more_is_sent_and_each_call_waits_until_its_deadline() {
    watched(|| {
        let server =
            Server::builder(cluster(0)).task(ps()).credentials(Identity::None).settings(support::patient());
        let server = server.service(SERVICE, Silent::default()).start().unwrap();
        let clients = clients(server.cluster(), 0, Identity::None);
        let ps = Connection::builder(clients).calls(2).open(ps());
        let calls = [800, 900].map(|ms| ps.start(count("n", 0), Duration::from_millis(ms)).unwrap());
        let full = ps.start(count("n", 0), Duration::from_millis(50)).unwrap_err().to_string();
        assert!(full.contains("there is no room for it while 2 requests are in flight"), "{full}");
        // The failed request does not affect the two in flight.
        for (call, ms) in calls.into_iter().zip([800, 900]) {
            let error = call.wait().unwrap_err().to_string();
            assert!(error.contains(&format!("no answer from ps 0 within {ms}ms")), "{error}");
        }
    });
}

// INV-28: a small call cannot take the memory of a server.
#[test]
fn a_call_whose_answers_exceed_the_limit_together_is_refused_the_rest() {
    watched(|| {
        let server = server(cluster(0), ParameterServer::new(), Identity::None);
        let ps = connection(server.cluster(), 0);
        ps.call(counters("n", 4 << 20), PATIENCE).unwrap();
        let read = || Request::Read { table: "n".into(), known: None, may_round: false };
        let mut requests = vec![read(); 8];
        requests.insert(3, count("n", 0));
        let Response::Batch(answers) = ps.call(Request::Batch(requests), PATIENCE).unwrap() else {
            panic!("no batch")
        };
        let kinds: Vec<_> =
            answers.iter().map(|answer| answer.as_ref().err().map(|error| error.kind)).collect();
        let too_large = Some(RefusalKind::TooLarge);
        // Two responses of 32 MiB fit, and no more. Changes are made nevertheless.
        assert_eq!(kinds, [&[None, None, too_large, None][..], &[too_large; 5]].concat());
        let text = answers[8].as_ref().unwrap_err().text.clone();
        assert!(text.starts_with("read of table n: the answers to the requests before it"), "{text}");
        assert!(matches!(ps.call(read(), PATIENCE), Ok(Response::Value(_))));
    });
}

// INV-28
#[test]
fn a_request_for_which_a_server_has_no_room_is_refused_as_busy() {
    watched(|| {
        let builder = Server::builder(cluster(0)).task(ps()).credentials(Identity::None).settings(patient());
        let builder = builder.max_waiting_bytes(10_000).service(SERVICE, ParameterServer::new());
        let server = builder.start().unwrap();
        let ps = connection(server.cluster(), 0);
        let write = |value| Request::Write { table: "w".into(), how: Write::Assign, value };
        let kind = |request| match ps.call(request, PATIENCE).unwrap_err() {
            ChannelError::Refused { refusal, .. } => (refusal.kind, refusal.text),
            other => panic!("{other}"),
        };
        let (busy, text) = kind(write(matrix(&[1.; 4096], 1)));
        assert_eq!(busy, RefusalKind::Busy, "{text}");
        assert!(text.contains("there is no memory for a call of 16"), "{text}");
        assert_eq!(kind(write(HostTensor::scalar(1f32))).0, RefusalKind::NoSuchTable);
    });
}

// INV-28
#[test]
fn invalid_requests_are_refused_and_the_server_continues() {
    watched(|| {
        let server = server(cluster(0), ParameterServer::new(), Identity::None);
        let clients = clients(server.cluster(), 2, Identity::None);
        let stranger = clients.connect(&ps(), PATIENCE).unwrap();
        // An initializer of a kind that no version has: a head of `Create` with `Contents::Initialized`.
        let create =
            [&b"\x05\0\x4d\0\0\0\0\x01t\x01\x01\x02\x02\x01\x01\x03"[..], &[0; 16], &[0, 2, 1, 0, 0]]
                .concat();
        for (message, reason) in [
            (Message::default(), "no head"),
            (Message::new("garbage", "more"), "another version of requests than "),
            (Message::new("\u{5}\u{2}", ""), "no flag whether a change was acknowledged"),
            (Message::new(create, ""), "a head that cannot be decoded"),
        ] {
            let answer = stranger.call(SERVICE, message, PATIENCE).unwrap();
            let text = String::from_utf8_lossy(&answer.head).into_owned();
            let expected = format!("worker 2 sent something other than a request: it has {reason}");
            assert!(text.contains(&expected), "{text}");
        }
        let ps = connection(server.cluster(), 0);
        let error = ps.call(
            Request::Write { table: "w".into(), how: Write::Assign, value: HostTensor::scalar(1f32) },
            PATIENCE,
        );
        assert!(
            matches!(&error, Err(ChannelError::Refused { refusal, .. }) if refusal.kind == RefusalKind::NoSuchTable),
            "{error:?}"
        );
    });
}

// INV-81
#[test]
fn only_the_chief_starts_a_job() {
    watched(|| {
        let server = server(cluster(0), ParameterServer::new(), Identity::None);
        let begin = |task: Task, job| {
            let clients = ClientBuilder::new(server.cluster().clone(), task).credentials(Identity::None);
            Connection::new(clients.settings(patient()), ps()).call(Request::BeginJob { job }, PATIENCE)
        };
        for task in [Job::Worker.task(0), Job::Chief.task(1), Task::new("coordinator", 0)] {
            let error = begin(task.clone(), 1 << 32).unwrap_err();
            let ChannelError::Refused { refusal, .. } = &error else { panic!("{error}") };
            assert_eq!(refusal.kind, RefusalKind::NotAllowed);
            assert!(error.to_string().contains(&format!("{task} may not begin a job")), "{error}");
            // The request is also refused in a batch.
            let call = connection(server.cluster(), 0);
            let both = Request::Batch(vec![Request::List, Request::BeginJob { job: 1 << 32 }]);
            assert!(call.call(both, PATIENCE).is_err());
        }
        assert_eq!(begin(Job::Chief.task(0), 1 << 33), Ok(Response::Job { newest: 1 << 33 }));
    });
}
