//! A coordinator and workers that are connected over sockets.

use crate::support::{Functions, MINUTE, World, call, fetched, functions, of};
use bytes::Bytes;
use distribute_cluster::{ClusterSpec, Job};
use distribute_coordinator::{
    Connect, Coordinator, Error, Executor, Failure, FailureKind, FunctionId, Options, Program, RemoteWorker,
    SERVICE, Worker,
};
use distribute_net::Message;
use distribute_rpc::{ClientBuilder, Server};
use distribute_testing::{Port, SplitMix, fuzz_inputs, watched, watched_for};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Servers of workers, which can be stopped and restarted.
struct Cluster {
    spec: ClusterSpec,
    world: Arc<World>,
    starts: AtomicU64,
    servers: Vec<Option<Server>>,
    _ports: Vec<Port>,
}

impl Cluster {
    fn new(workers: usize) -> Self {
        let ports: Vec<_> = (0..workers).map(|_| Port::reserve()).collect();
        let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{}", port.number())).collect();
        let spec = ClusterSpec::from_lists([("worker", addresses)]).unwrap();
        let mut cluster = Self {
            spec,
            world: Arc::default(),
            starts: AtomicU64::new(0),
            servers: (0..workers).map(|_| None).collect(),
            _ports: ports,
        };
        (0..workers).for_each(|worker| cluster.start(worker));
        cluster
    }

    fn start(&mut self, worker: usize) {
        self.start_with(worker, Functions(self.world.clone()));
    }

    fn start_with(&mut self, worker: usize, program: impl Program + 'static) {
        let service = Worker::new(Arc::new(program));
        let server =
            Server::builder(self.spec.clone()).task(Job::Worker.task(worker)).service(SERVICE, service);
        self.servers[worker] = Some(server.start().unwrap());
    }

    fn stop(&mut self, worker: usize) {
        self.servers[worker] = None;
    }

    fn connect(&self) -> Vec<Box<dyn Connect>> {
        let clients = || ClientBuilder::new(self.spec.clone(), Job::Chief.task(0));
        let worker = |index| Box::new(RemoteWorker::new(clients(), Job::Worker.task(index))) as _;
        (0..self.servers.len()).map(worker).collect()
    }

    fn coordinator(&self, options: Options) -> Result<Coordinator, Error> {
        self.starts.fetch_add(1, Ordering::Relaxed);
        let job = self.starts.load(Ordering::Relaxed);
        Coordinator::new(self.connect(), functions(), job, Bytes::new(), options)
    }
}

#[test]
fn closures_run_on_workers_in_other_processes() {
    watched(|| {
        let cluster = Cluster::new(2);
        let coordinator = cluster.coordinator(Options::default()).unwrap();
        let values: Vec<_> =
            (0..500).map(|value| coordinator.schedule(call("value", &[value])).unwrap()).collect();
        for (expected, value) in values.iter().enumerate() {
            assert_eq!(fetched(value), Ok(expected as u64));
        }
        coordinator.schedule(call("fail", &[])).unwrap();
        assert!(coordinator.join().unwrap_err().to_string().contains("this is wrong"));
        let stream = coordinator.create(call("stream", &[])).unwrap();
        assert!(fetched(&coordinator.schedule(of("draw", stream, &[0])).unwrap()).is_ok());
        coordinator.join().unwrap();
        // A later coordinator takes over the workers.
        let later = cluster.coordinator(Options::default()).unwrap();
        assert_eq!(fetched(&later.schedule(call("value", &[1])).unwrap()), Ok(1));
        let text = cluster.world.ran("value");
        assert_eq!(text, 501);
    });
}

// INV-60
#[test]
fn ft_3_closures_of_a_lost_worker_run_elsewhere_and_its_datasets_resume() {
    watched(|| {
        let mut cluster = Cluster::new(2);
        let coordinator = cluster.coordinator(Options::default()).unwrap();
        let stream = coordinator.create(call("stream", &[])).unwrap();
        let gate = coordinator.schedule(call("gate", &[0])).unwrap();
        cluster.world.wait_started(0);
        // The other worker may be creating the stream.
        let runs_gate = |(function, ..): (FunctionId, _, _)| function.to_string().contains("gate");
        let held = usize::from(coordinator.status().workers[1].running.clone().is_some_and(runs_gate));
        let free = 1 - held;
        for expected in 0..3 {
            assert_eq!(fetched(&coordinator.schedule(of("draw", stream, &[0])).unwrap()), Ok(expected));
        }
        cluster.stop(free);
        cluster.world.until(|| coordinator.status().workers[free].disconnect_reason.is_some());
        cluster.start(free);
        // The restarted worker continues its stream.
        for expected in 3..6 {
            assert_eq!(fetched(&coordinator.schedule(of("draw", stream, &[0])).unwrap()), Ok(expected));
        }
        // The worker that runs the gate is lost, and the other one runs it.
        cluster.stop(held);
        cluster.world.until(|| cluster.world.ran("gate") == 2);
        cluster.world.open(0);
        assert_eq!(fetched(&gate), Ok(0));
        coordinator.join().unwrap();
        let losses: Vec<_> = coordinator.status().workers.iter().map(|worker| worker.losses).collect();
        assert_eq!(losses, [1, 1]);
    });
}

#[test]
fn t3_workers_that_are_missing_are_named() {
    watched(|| {
        let mut cluster = Cluster::new(2);
        cluster.stop(1);
        let options = Options { join_timeout: Duration::from_millis(100), ..Options::default() };
        let text = cluster.coordinator(options).unwrap_err().to_string();
        assert!(
            text.starts_with("ClusterCoordinator::new: 1 of 2 workers cannot work (worker 1: "),
            "{text}"
        );
    });
}

#[test]
fn without_workers_the_program_gets_an_error_and_closures_are_kept() {
    watched(|| {
        let mut cluster = Cluster::new(1);
        let options = Options { timeout: Duration::from_millis(200), ..Options::default() };
        let coordinator = cluster.coordinator(options).unwrap();
        cluster.stop(0);
        cluster.world.until(|| coordinator.status().workers[0].disconnect_reason.is_some());
        let value = coordinator.schedule(call("value", &[4])).unwrap();
        let text = coordinator.join().unwrap_err().to_string();
        assert!(
            text.contains("no worker has been connected for") && text.contains("and 1 closures wait"),
            "{text}"
        );
        assert!(matches!(value.fetch().unwrap_err(), Error::NoWorkers { .. }));
        cluster.start(0);
        cluster.world.until(|| coordinator.status().workers[0].disconnect_reason.is_none());
        coordinator.join().unwrap();
        assert_eq!(fetched(&value), Ok(4));
    });
}

#[test]
fn a_worker_with_other_functions_is_refused_by_their_names() {
    watched(|| {
        let cluster = Cluster::new(1);
        let mut theirs = functions();
        theirs[0].source = 2;
        theirs.push(FunctionId { name: "train".to_owned(), source: 3 });
        let error =
            Coordinator::new(cluster.connect(), theirs, 1, Bytes::new(), Options::default()).unwrap_err();
        assert!(matches!(error, Error::NotConnected { workers: 1, .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("it has no train; it has another value; start all tasks from the same binary"),
            "{text}"
        );
        // The worker waits for a coordinator of its own build.
        let coordinator = cluster.coordinator(Options::default()).unwrap();
        assert_eq!(fetched(&coordinator.schedule(call("value", &[1])).unwrap()), Ok(1));
    });
}

#[test]
fn a_coordinator_whose_workers_have_a_later_one_gets_an_error_that_says_so() {
    watched(|| {
        let cluster = Cluster::new(1);
        let options = || Options { timeout: Duration::from_millis(200), ..Options::default() };
        let earlier = cluster.coordinator(options()).unwrap();
        let later = cluster.coordinator(options()).unwrap();
        let reason = || earlier.status().workers[0].disconnect_reason.clone();
        cluster.world.until(|| reason().is_some_and(|reason| reason.contains("was started later")));
        let error = earlier.schedule(call("value", &[1])).and_then(|_| earlier.join()).unwrap_err();
        let refused = Some(FailureKind::Superseded);
        assert!(matches!(&error, Error::NoWorkers { refused: found, .. } if *found == refused), "{error:?}");
        // A coordinator that begins with an older job is rejected at once.
        let error = Coordinator::new(cluster.connect(), functions(), 1, Bytes::new(), options()).unwrap_err();
        assert!(
            matches!(&error, Error::NotConnected { refused: found, .. } if *found == refused),
            "{error:?}"
        );
        assert_eq!(fetched(&later.schedule(call("value", &[2])).unwrap()), Ok(2));
    });
}

/// The program of another build.
struct Later(Functions);

impl Program for Later {
    fn functions(&self) -> Vec<FunctionId> {
        let mut functions = functions();
        functions[0].source = 2;
        functions
    }

    fn start(&self, worker: usize, workers: usize, settings: &Bytes) -> Result<Arc<dyn Executor>, Failure> {
        self.0.start(worker, workers, settings)
    }
}

#[test]
fn a_worker_restarted_from_another_binary_gets_no_work_and_the_others_continue() {
    watched(|| {
        let mut cluster = Cluster::new(2);
        let coordinator = cluster.coordinator(Options::default()).unwrap();
        let disconnect_reason = |worker: usize| {
            coordinator.status().workers[worker].disconnect_reason.clone().unwrap_or_default()
        };
        cluster.stop(1);
        cluster.start_with(1, Later(Functions(cluster.world.clone())));
        cluster.world.until(|| {
            disconnect_reason(1).contains("it has another value; start all tasks from the same binary")
        });
        for expected in 0..20 {
            assert_eq!(fetched(&coordinator.schedule(call("value", &[expected])).unwrap()), Ok(expected));
        }
        coordinator.join().unwrap();
        // With the right program, the worker is used again.
        cluster.stop(1);
        cluster.start(1);
        cluster.world.until(|| coordinator.status().workers[1].disconnect_reason.is_none());
    });
}

#[test]
fn bad_closures_fail_alone_and_their_worker_continues() {
    watched(|| {
        let cluster = Cluster::new(1);
        // Much longer than any other closure takes.
        let options = Options { closure_timeout: Duration::from_secs(2), ..Options::default() };
        let coordinator = cluster.coordinator(options).unwrap();
        for (bad, kind, says) in [
            (call("panic", &[]), FailureKind::Panicked, "on worker 0: it panicked: no more"),
            (call("nothing", &[]), FailureKind::UnknownFunction, "nothing (closure 2)"),
            (call("large", &[(64 << 20) + 1]), FailureKind::TooLarge, "its result has 67108865 bytes"),
            (
                call("stuck", &[0]),
                FailureKind::TimedOut,
                "stuck (closure 6) on worker 0: it did not finish within ",
            ),
        ] {
            let remote = coordinator.schedule(bad).unwrap();
            assert_eq!(fetched(&remote), Err(kind));
            let error = coordinator.join().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            let value = coordinator.schedule(call("value", &[5])).unwrap();
            assert_eq!(fetched(&value), Ok(5));
            coordinator.join().unwrap();
        }
        // The closure was not retried, and has been running until now.
        assert_eq!(cluster.world.ran("stuck"), 1);
        cluster.world.open(0);
    });
}

#[test]
fn unknown_bytes_are_refused_and_the_worker_continues() {
    // The time depends on the number of inputs.
    watched_for(MINUTE + Duration::from_millis(fuzz_inputs()), || {
        let cluster = Cluster::new(1);
        let clients = ClientBuilder::new(cluster.spec.clone(), Job::Chief.task(0));
        let client = clients.connect(&Job::Worker.task(0), MINUTE).unwrap();
        let ask = |bytes: Vec<u8>| client.call(SERVICE, Message::new("", bytes), MINUTE);
        let mut random = SplitMix(7);
        for _ in 0..fuzz_inputs() {
            // The version, a kind of request, and random bytes.
            let mut bytes = vec![1, random.below(4) as u8];
            bytes.extend((0..random.below(40)).map(|_| random.below(9) as u8));
            drop(ask(bytes));
        }
        let coordinator = cluster.coordinator(Options::default()).unwrap();
        assert_eq!(fetched(&coordinator.schedule(call("value", &[1])).unwrap()), Ok(1));
        let others = ClientBuilder::new(cluster.spec.clone(), Job::Worker.task(0));
        let client = others.connect(&Job::Worker.task(0), MINUTE).unwrap();
        let said = client.call(SERVICE, Message::new("", vec![1]), MINUTE).unwrap_err();
        assert!(said.to_string().contains("workers only work for the chief"), "{said}");
        assert_eq!(
            fetched(&coordinator.schedule(call("fail", &[])).unwrap()),
            Err(FailureKind::InvalidArgument)
        );
    });
}

// INV-81
#[test]
fn no_other_task_starts_a_job_and_no_job_takes_all_numbers() {
    watched(|| {
        let cluster = Cluster::new(1);
        // A coordinator that uses the largest job number.
        let options = Options { join_timeout: Duration::from_secs(5), ..Options::default() };
        let greedy = Coordinator::new(cluster.connect(), functions(), u64::MAX, Bytes::new(), options);
        let text = greedy.unwrap_err().to_string();
        assert!(text.contains("a number so far ahead is refused"), "{text}");
        let coordinator = cluster.coordinator(options).unwrap();
        // Tasks that are not the coordinator send a hello.
        for task in [Job::Worker.task(0), Job::Ps.task(0), Job::Chief.task(1)] {
            let client = ClientBuilder::new(cluster.spec.clone(), task);
            let client = client.connect(&Job::Worker.task(0), MINUTE).unwrap();
            let error = client.call(SERVICE, Message::new("", hello(9)), MINUTE).unwrap_err();
            assert!(error.to_string().contains("workers only work for the chief"), "{error}");
        }
        assert_eq!(fetched(&coordinator.schedule(call("value", &[1])).unwrap()), Ok(1));
    });
}

/// Returns the bytes of a hello: the version, the kind, the job, the worker, the number of workers, no functions, no
/// settings.
fn hello(job: u8) -> Vec<u8> {
    vec![1, 0, job, 0, 1, 0, 0]
}
