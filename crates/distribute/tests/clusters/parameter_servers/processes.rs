//! Parameter servers in separate processes, one of which is killed.

use crate::parameter_servers::support::{Net, state, train};
use distribute::cluster::Stopwatch;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::optimizer::rules::{Adagrad, Adam, Ftrl, Momentum, Rule, Sgd};
use distribute::params::FixedShardsPartitioner;
use distribute::{
    ClusterSpec, HostTensor, Job, OneDeviceStrategy, Optimizer, ParameterServerStrategy, Serve, Strategy,
    Variable,
};
use distribute_testing::{Port, SplitMix, child, watched};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const STEPS: usize = 6;

/// Returns a cluster of a worker and servers at these ports, without the coordinator.
fn cluster(ports: &[Port]) -> String {
    let ports: Vec<_> = ports.iter().map(|port| port.address().to_string()).collect();
    format!("{{\"worker\": [{:?}], \"ps\": {:?}}}", ports[0], &ports[1..])
}

/// Runs the process of a task. `part` has the lines job, number, cluster and folder, and whether servers replicate
/// each other.
fn serve(part: &str) {
    let mut words = part.split('\n');
    let job = Job::from(words.next().unwrap());
    let number = words.next().unwrap().parse().unwrap();
    let cluster: ClusterSpec = words.next().unwrap().parse().unwrap();
    let resolver = SimpleClusterResolver::new(cluster).with_task(job.task(number));
    let serve = Serve::new().folder(words.next().unwrap()).replicas(words.next() == Some("replicas"));
    assert!(serve.run(&resolver).unwrap());
}

struct Servers<'a> {
    test: &'a str,
    cluster: String,
    /// The ports, which no other process gets while a server is killed.
    _ports: Vec<Port>,
    folder: &'a Path,
    replicas: bool,
    all: Vec<child::Killed>,
}

impl<'a> Servers<'a> {
    fn start(test: &'a str, servers: usize, folder: &'a Path) -> Self {
        Self::start_with(test, servers, folder, false)
    }

    fn start_with(test: &'a str, servers: usize, folder: &'a Path, replicas: bool) -> Self {
        let ports: Vec<_> = (0..=servers).map(|_| Port::reserve()).collect();
        let cluster = cluster(&ports);
        let mut all = Self { test, cluster, _ports: ports, folder, replicas, all: Vec::new() };
        let tasks = (0..servers).map(|number| ("ps", number)).chain([("worker", 0)]);
        all.all = tasks.map(|task| child::Killed(all.process(task))).collect();
        all
    }

    fn process(&self, (job, number): (&str, usize)) -> Child {
        let replicas = if self.replicas { "replicas" } else { "alone" };
        let part = format!("{job}\n{number}\n{}\n{}\n{replicas}", self.cluster, self.folder.display());
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

    /// Waits until all exit successfully, which they do when the chief tells them to.
    fn end(mut self, strategy: &ParameterServerStrategy) {
        strategy.end_servers().unwrap();
        for server in &mut self.all {
            assert!(server.0.wait().unwrap().success());
        }
    }
}

type Trained = (Vec<f32>, Vec<(String, Vec<u32>)>);

/// Trains. `between` is called after half of the steps.
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
    const TEST: &str = "parameter_servers::processes::weights_and_slots_on_processes_are_those_of_one_device";
    if let Some(part) = child::part() {
        return serve(&part);
    }
    fn check<R: Rule + Clone>(rule: R) {
        let alone = alone(rule.clone());
        for (servers, shards) in [(1, 1), (3, 2), (2, 3), (2, 5)] {
            let folder = tempfile::tempdir().unwrap();
            let servers = Servers::start(TEST, servers, folder.path());
            let strategy = servers.strategy(shards);
            let found = trained(&strategy, rule.clone(), || ());
            assert_eq!(found, alone, "{} in {shards} shards", rule.name());
            servers.end(&strategy);
        }
    }
    watched(|| {
        check(Sgd);
        check(Momentum::new(0.9));
        check(Adam::default());
        check(Adagrad::default());
        check(Ftrl { l1: 0.01, ..Ftrl::default() });
    });
}

// INV-53, INV-56
#[test]
fn a_server_that_is_killed_comes_back_with_what_it_had() {
    const TEST: &str = "parameter_servers::processes::a_server_that_is_killed_comes_back_with_what_it_had";
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

// INV-73
#[test]
fn a_training_is_refused_on_other_servers_than_it_had_and_resumed_on_those() {
    const TEST: &str = "parameter_servers::processes::a_training_is_refused_on_other_servers_than_it_had_and_resumed_on_those";
    if let Some(part) = child::part() {
        return serve(&part);
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let at = |server: &str| folder.path().join(server);
        let make = |strategy: &ParameterServerStrategy| {
            let rows = HostTensor::vector((0..6i64).collect::<Vec<_>>());
            strategy.scope(|| Variable::new("w", rows)).map(|w| w.read::<HostTensor>().unwrap())
        };
        let mut servers = Servers::start(TEST, 2, folder.path());
        let strategy = servers.strategy(2);
        make(&strategy).unwrap();
        strategy.scope(|| Variable::new("w2", 5i64)).unwrap().assign(7i64).unwrap();
        let refused = |servers: &Servers, shards: usize| {
            let partitioner = FixedShardsPartitioner::new(shards).unwrap();
            let resolver = SimpleClusterResolver::new(servers.cluster.parse().unwrap());
            let strategy = ParameterServerStrategy::new(resolver, partitioner);
            strategy.and_then(|strategy| make(&strategy)).unwrap_err().to_string()
        };
        // Another number of shards.
        let text = refused(&servers, 1);
        assert!(text.contains("servers have it as w/part_0, w/part_1, and here it is w;"), "{text}");
        // A folder that was emptied.
        servers.kill(1);
        std::fs::rename(at("ps-1"), at("away")).unwrap();
        servers.start_again(1);
        let text = refused(&servers, 2);
        for part in
            ["ps 1 is without any table of training", "which ps 0 has", "empty the folders of all servers"]
        {
            assert!(text.contains(part), "{text}");
        }
        servers.kill(1);
        std::fs::remove_dir_all(at("ps-1")).unwrap();
        std::fs::rename(at("away"), at("ps-1")).unwrap();
        servers.start_again(1);
        // With all that it had, it is resumed.
        make(&servers.strategy(2)).unwrap();
        drop((strategy, servers));
        for (count, number) in [(1, "1"), (3, "3")] {
            let others = Servers::start(TEST, count, folder.path());
            let text = refused(&others, 2);
            assert!(text.contains(&format!("are on 2 servers, and this cluster has {number}")), "{text}");
        }
        // Of two servers, each with the other's folder.
        std::fs::rename(at("ps-0"), at("away")).unwrap();
        std::fs::rename(at("ps-1"), at("ps-0")).unwrap();
        std::fs::rename(at("away"), at("ps-1")).unwrap();
        let text = refused(&Servers::start(TEST, 2, folder.path()), 2);
        assert!(text.contains("ps 0 has the tables of ps 1"), "{text}");
    });
}

// INV-57, INV-73
#[test]
fn a_training_is_resumed_by_a_new_chief_where_a_follower_had_what_a_folder_had() {
    const TEST: &str = "parameter_servers::processes::a_training_is_resumed_by_a_new_chief_where_a_follower_had_what_a_folder_had";
    if let Some(part) = child::part() {
        return serve(&part);
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut servers = Servers::start_with(TEST, 2, folder.path(), true);
        let make = |strategy: &ParameterServerStrategy| {
            strategy.scope(|| Variable::new("w", HostTensor::vector(vec![0i64; 4]))).unwrap()
        };
        make(&servers.strategy(2)).assign_add(HostTensor::vector(vec![1i64; 4])).unwrap();
        servers.kill(1);
        std::fs::remove_dir_all(folder.path().join("ps-1")).unwrap();
        servers.start_again(1);
        let strategy = servers.strategy(2);
        assert_eq!(make(&strategy).read::<HostTensor>().unwrap(), HostTensor::vector(vec![1i64; 4]));
        servers.end(&strategy);
    });
}

/// The longest time until a step is made again.
const AWAY: Duration = Duration::from_secs(10);

/// Kills one of two servers this number of times during a training. With `replicas`, the folder of the killed server
/// is deleted and its copy is used. Returns the time after each kill until a later step was made.
fn under_load(test: &str, kills: usize, seed: u64, replicas: bool) -> Vec<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let mut servers = Servers::start_with(test, 2, folder.path(), replicas);
    let strategy = servers.strategy(2);
    let model = strategy.replicate_seeded(7, Net::new).unwrap();
    let optimizer = Optimizer::with_rule(Adam::default(), &model.variables, 0.05).unwrap();
    let steps = strategy.scope(|| Variable::new("steps", 0i64)).unwrap();
    let (made, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let progress = |count: usize| {
        let before = made.load(Ordering::SeqCst);
        let (_keep, never) = mpsc::channel::<()>();
        while made.load(Ordering::SeqCst) < before + count && !over.load(Ordering::SeqCst) {
            let _ = never.recv_timeout(Duration::from_millis(1));
        }
    };
    let mut away = Vec::new();
    let losses = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut random = SplitMix(seed);
            for _ in 0..kills {
                progress(1 + random.below(8));
                let number = random.below(2);
                servers.kill(number);
                if replicas {
                    std::fs::remove_dir_all(folder.path().join(format!("ps-{number}"))).unwrap();
                }
                let gone = Stopwatch::start();
                servers.start_again(number);
                // The first may have been made before.
                progress(2);
                away.push(gone.elapsed());
            }
            over.store(true, Ordering::SeqCst);
        });
        let mut losses = Vec::new();
        while !over.load(Ordering::SeqCst) {
            let step = made.load(Ordering::SeqCst);
            // A failure here has to end the other thread, too.
            let mine = std::panic::catch_unwind(AssertUnwindSafe(|| {
                steps.assign_add(1i64).unwrap();
                train(&strategy, &model, &optimizer, step..step + 1)
            }));
            match mine {
                Ok(mine) => losses.extend(mine),
                Err(panic) => {
                    over.store(true, Ordering::SeqCst);
                    std::panic::resume_unwind(panic);
                }
            }
            made.fetch_add(1, Ordering::SeqCst);
        }
        killer.join().unwrap();
        losses
    });
    let made = made.into_inner();
    assert_eq!(steps.read::<i64>().unwrap(), made as i64);
    let one = OneDeviceStrategy::new("cpu:0").unwrap();
    let alone = one.replicate_seeded(7, Net::new).unwrap();
    let other = Optimizer::with_rule(Adam::default(), &alone.variables, 0.05).unwrap();
    assert_eq!(losses, train(&one, &alone, &other, 0..made));
    assert_eq!(state(&model, &optimizer), state(&alone, &other), "{made} steps");
    servers.end(&strategy);
    away
}

// INV-53, INV-56, INV-57
/// `DISTRIBUTE_TEST_KILLS=100` kills servers more often, and `--nocapture` prints how long the training stopped.
#[test]
fn a_training_whose_servers_are_killed_is_that_of_one_device() {
    const TEST: &str =
        "parameter_servers::processes::a_training_whose_servers_are_killed_is_that_of_one_device";
    if let Some(part) = child::part() {
        return serve(&part);
    }
    let kills: usize = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(5, |kills| kills.parse().unwrap());
    let mut away = Vec::new();
    for round in 0..kills.div_ceil(10) as u64 {
        let of_round = kills.min(10);
        away.extend(watched(move || under_load(TEST, of_round, round, false)));
        away.extend(watched(move || under_load(TEST, of_round.div_ceil(2), round, true)));
    }
    away.sort();
    eprintln!(
        "{} kills: away median {:?}, at most {:?}",
        away.len(),
        away[away.len() / 2],
        away[away.len() - 1]
    );
    assert!(away[away.len() - 1] < AWAY, "{away:?}");
}
