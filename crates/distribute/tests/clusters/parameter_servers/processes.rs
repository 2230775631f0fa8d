//! Parameter servers in separate processes, one of which is killed.

use crate::parameter_servers::support::{Net, state, train};
use crate::support::cluster::{Cluster, is_task};
use distribute::cluster::Stopwatch;
use distribute::optimizer::rules::{Adagrad, Adam, Ftrl, Momentum, Rule, Sgd};
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::{HostTensor, OneDeviceStrategy, Optimizer, ParameterServerStrategy, Strategy, Variable};
use distribute_testing::{SplitMix, watched};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const STEPS: usize = 6;

fn start(test: &'static str, servers: usize, folder: &Path) -> Cluster {
    Cluster::builder(test, 1, servers).folder(folder).start()
}

/// Starts servers that replicate each other.
fn start_replicated(test: &'static str, servers: usize, folder: &Path) -> Cluster {
    Cluster::builder(test, 1, servers).folder(folder).replicate_servers().start()
}

fn strategy_of(cluster: &Cluster, shards: usize) -> ParameterServerStrategy {
    let partitioner = FixedShardsPartitioner::new(shards).unwrap();
    ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap()
}

/// Stops the servers, and waits until all of them have exited successfully.
fn end(cluster: Cluster, strategy: &ParameterServerStrategy) {
    strategy.end_servers().unwrap();
    cluster.wait_for_exit();
}

type Trained = (Vec<f32>, Vec<(String, Vec<u32>)>);

/// Trains, and calls `between` after half of the steps.
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
fn weights_and_slots_on_processes_equal_those_of_one_device() {
    const TEST: &str =
        "parameter_servers::processes::weights_and_slots_on_processes_equal_those_of_one_device";
    if is_task() {
        return;
    }
    fn check<R: Rule + Clone>(rule: R) {
        let alone = alone(rule.clone());
        for (servers, shards) in [(1, 1), (3, 2), (2, 3), (2, 5)] {
            let folder = tempfile::tempdir().unwrap();
            let servers = start(TEST, servers, folder.path());
            let strategy = strategy_of(&servers, shards);
            let found = trained(&strategy, rule.clone(), || ());
            assert_eq!(found, alone, "{} in {shards} shards", rule.name());
            end(servers, &strategy);
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
fn a_killed_server_restarts_with_its_state() {
    const TEST: &str = "parameter_servers::processes::a_killed_server_restarts_with_its_state";
    if is_task() {
        return;
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut servers = start(TEST, 2, folder.path());
        let strategy = strategy_of(&servers, 2);
        let found = trained(&strategy, Adagrad::default(), || {
            for number in [0, 1] {
                servers.kill(servers.server(number));
                servers.restart(servers.server(number));
            }
        });
        assert_eq!(found, alone(Adagrad::default()));
        end(servers, &strategy);
    });
}

// INV-73
#[test]
fn a_training_is_refused_on_other_servers_and_resumed_on_its_own() {
    const TEST: &str =
        "parameter_servers::processes::a_training_is_refused_on_other_servers_and_resumed_on_its_own";
    if is_task() {
        return;
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let at = |server: &str| folder.path().join(server);
        let make = |strategy: &ParameterServerStrategy| {
            let rows = HostTensor::vector((0..6i64).collect::<Vec<_>>());
            strategy.scope(|| Variable::new("w", rows)).map(|w| w.read::<HostTensor>().unwrap())
        };
        let mut servers = start(TEST, 2, folder.path());
        let strategy = strategy_of(&servers, 2);
        make(&strategy).unwrap();
        strategy.scope(|| Variable::new("w2", 5i64)).unwrap().assign(7i64).unwrap();
        let refused = |servers: &Cluster, shards: usize| {
            let partitioner = FixedShardsPartitioner::new(shards).unwrap();
            let strategy = ParameterServerStrategy::new(servers.resolver(), partitioner);
            strategy.and_then(|strategy| make(&strategy)).unwrap_err().to_string()
        };
        // Another number of shards.
        let text = refused(&servers, 1);
        assert!(text.contains("on the servers it is w/part_0, w/part_1, but here it is w;"), "{text}");
        // A folder that was emptied.
        servers.kill(servers.server(1));
        std::fs::rename(at("ps-1"), at("away")).unwrap();
        servers.restart(servers.server(1));
        let text = refused(&servers, 2);
        for part in
            ["ps 1 is without any table of training", "which ps 0 has", "empty the folders of all servers"]
        {
            assert!(text.contains(part), "{text}");
        }
        servers.kill(servers.server(1));
        std::fs::remove_dir_all(at("ps-1")).unwrap();
        std::fs::rename(at("away"), at("ps-1")).unwrap();
        servers.restart(servers.server(1));
        // With all folders, the training is resumed.
        make(&strategy_of(&servers, 2)).unwrap();
        drop((strategy, servers));
        for (count, number) in [(1, "1"), (3, "3")] {
            let others = start(TEST, count, folder.path());
            let text = refused(&others, 2);
            assert!(text.contains(&format!("are on 2 servers, and this cluster has {number}")), "{text}");
        }
        // Each of two servers has the folder of the other.
        std::fs::rename(at("ps-0"), at("away")).unwrap();
        std::fs::rename(at("ps-1"), at("ps-0")).unwrap();
        std::fs::rename(at("away"), at("ps-1")).unwrap();
        let text = refused(&start(TEST, 2, folder.path()), 2);
        assert!(text.contains("ps 0 has the tables of ps 1"), "{text}");
    });
}

// INV-57, INV-73
#[test]
fn a_training_is_resumed_by_a_new_chief_from_followers_instead_of_a_folder() {
    const TEST: &str = "parameter_servers::processes::a_training_is_resumed_by_a_new_chief_from_followers_instead_of_a_folder";
    if is_task() {
        return;
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut servers = start_replicated(TEST, 2, folder.path());
        let make = |strategy: &ParameterServerStrategy| {
            strategy.scope(|| Variable::new("w", HostTensor::vector(vec![0i64; 4]))).unwrap()
        };
        make(&strategy_of(&servers, 2)).assign_add(HostTensor::vector(vec![1i64; 4])).unwrap();
        servers.kill(servers.server(1));
        std::fs::remove_dir_all(folder.path().join("ps-1")).unwrap();
        servers.restart(servers.server(1));
        let strategy = strategy_of(&servers, 2);
        assert_eq!(make(&strategy).read::<HostTensor>().unwrap(), HostTensor::vector(vec![1i64; 4]));
        end(servers, &strategy);
    });
}

/// The maximum time from a kill to the next step.
const AWAY: Duration = Duration::from_secs(10);

/// Kills one of two servers `kills` times during a training. With `replicas`, the folder of the killed server is
/// deleted and its replica is used. Returns the time from each kill to the next step.
fn under_load(test: &'static str, kills: usize, seed: u64, replicas: bool) -> Vec<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let start = if replicas { start_replicated } else { start };
    let mut servers = start(test, 2, folder.path());
    let strategy = strategy_of(&servers, 2);
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
                servers.kill(servers.server(number));
                if replicas {
                    std::fs::remove_dir_all(folder.path().join(format!("ps-{number}"))).unwrap();
                }
                let gone = Stopwatch::start();
                servers.restart(servers.server(number));
                // The first of two steps may have been made before the restart.
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
    end(servers, &strategy);
    away
}

// INV-53, INV-56, INV-57
/// `DISTRIBUTE_TEST_KILLS=100` kills servers more often, and `--nocapture` prints how long the training stopped.
#[test]
fn a_training_with_killed_servers_is_bit_identical_to_one_device() {
    const TEST: &str =
        "parameter_servers::processes::a_training_with_killed_servers_is_bit_identical_to_one_device";
    if is_task() {
        return;
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
