//! Parameter servers that are processes of their own, one of which is killed.

use crate::support::{Net, state, train};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::optimizer::rules::{Adagrad, Adam, Rule};
use distribute::params::FixedShardsPartitioner;
use distribute::{ClusterSpec, Job, OneDeviceStrategy, Optimizer, ParameterServerStrategy, Serve, Strategy};
use distribute_testing::{child, watched};
use std::net::TcpListener;
use std::path::Path;
use std::process::Child;

const STEPS: usize = 6;

/// A cluster of a worker and so many servers at free ports. The coordinator is none of them.
fn cluster(servers: usize) -> String {
    let free: Vec<_> = (0..=servers).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<_> = free.iter().map(|port| port.local_addr().unwrap().to_string()).collect();
    format!("{{\"worker\": [{:?}], \"ps\": {:?}}}", ports[0], &ports[1..])
}

/// A task's process: `job number cluster folder`, a line each.
fn serve(part: &str) {
    let mut words = part.split('\n');
    let job = Job::from(words.next().unwrap());
    let number = words.next().unwrap().parse().unwrap();
    let cluster: ClusterSpec = words.next().unwrap().parse().unwrap();
    let resolver = SimpleClusterResolver::new(cluster).with_task(job.task(number));
    assert!(Serve::new().folder(words.next().unwrap()).run(&resolver).unwrap());
}

struct Servers<'a> {
    test: &'a str,
    cluster: String,
    folder: &'a Path,
    all: Vec<child::Killed>,
}

impl<'a> Servers<'a> {
    fn start(test: &'a str, servers: usize, folder: &'a Path) -> Self {
        let mut all = Self { test, cluster: cluster(servers), folder, all: Vec::new() };
        let tasks = (0..servers).map(|number| ("ps", number)).chain([("worker", 0)]);
        all.all = tasks.map(|task| child::Killed(all.process(task))).collect();
        all
    }

    fn process(&self, (job, number): (&str, usize)) -> Child {
        let part = format!("{job}\n{number}\n{}\n{}", self.cluster, self.folder.display());
        child::command(self.test, &part).spawn().unwrap()
    }

    fn strategy(&self, shards: usize) -> ParameterServerStrategy {
        let cluster: ClusterSpec = self.cluster.parse().unwrap();
        let partitioner = FixedShardsPartitioner::new(shards).unwrap();
        ParameterServerStrategy::new(SimpleClusterResolver::new(cluster), partitioner).unwrap()
    }

    fn kill(&mut self, number: usize) {
        self.all[number].0.kill().unwrap();
        self.all[number].0.wait().unwrap();
    }

    fn start_again(&mut self, number: usize) {
        self.all[number] = child::Killed(self.process(("ps", number)));
    }

    /// They end by themselves, and well, because the chief says so.
    fn end(mut self, strategy: &ParameterServerStrategy) {
        strategy.end_servers().unwrap();
        for server in &mut self.all {
            assert!(server.0.wait().unwrap().success());
        }
    }
}

type Trained = (Vec<f32>, Vec<(String, Vec<u32>)>);

/// `between` is called after half of the steps.
fn trained<R: Rule>(strategy: &Strategy, rule: R, between: impl FnOnce()) -> Trained {
    let model = strategy.replicate_seeded(7, Net::new).unwrap();
    let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
    let mut losses = train(strategy, &model, &optimizer, 0..STEPS / 2);
    between();
    losses.extend(train(strategy, &model, &optimizer, STEPS / 2..STEPS));
    (losses, state(&model, &optimizer))
}

fn alone<R: Rule>(rule: R) -> Trained {
    trained(&OneDeviceStrategy::new("cpu:0").unwrap(), rule, || ())
}

// INV-56
#[test]
fn weights_and_slots_on_processes_are_those_of_one_device() {
    const TEST: &str = "processes::weights_and_slots_on_processes_are_those_of_one_device";
    if let Some(part) = child::part() {
        return serve(&part);
    }
    watched(|| {
        for servers in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let servers = Servers::start(TEST, servers, folder.path());
            let strategy = servers.strategy(2);
            assert_eq!(trained(&strategy, Adam::default(), || ()), alone(Adam::default()));
            servers.end(&strategy);
        }
    });
}

// INV-53, INV-56
#[test]
fn a_server_that_is_killed_comes_back_with_what_it_had() {
    const TEST: &str = "processes::a_server_that_is_killed_comes_back_with_what_it_had";
    if let Some(part) = child::part() {
        return serve(&part);
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut servers = Servers::start(TEST, 2, folder.path());
        let strategy = servers.strategy(2);
        let found = trained(&strategy, Adagrad::default(), || {
            for number in [0, 1] {
                servers.kill(number);
                servers.start_again(number);
            }
        });
        assert_eq!(found, alone(Adagrad::default()));
        servers.end(&strategy);
    });
}
