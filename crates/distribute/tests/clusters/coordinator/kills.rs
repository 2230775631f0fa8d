//! Tests in which workers and servers are killed while closures count.

use crate::coordinator::counters::{ROWS, add, count, counters_of, make_counters, patient, read};
use crate::coordinator::support::{kills, settings, strategy};
use crate::support::cluster::{Cluster, is_task};
use distribute::ClusterCoordinator;
use distribute_testing::{SplitMix, watched};
use std::time::Duration;

/// Kills workers and servers `kills` times while closures count, and compares the counts.
fn count_under_kills(cluster: &mut Cluster, kills: usize, closures_each: i64) {
    let strategy = strategy(cluster.spec());
    let coordinator = patient(&strategy);
    let counters = coordinator.create_per_worker_value(make_counters, ()).unwrap();
    let (mut random, mut expected) = (SplitMix(kills as u64), vec![0i64; ROWS]);
    for _ in 0..=kills {
        for _ in 0..closures_each {
            let row = random.below(ROWS);
            coordinator.schedule(count, (&counters, row as i64)).unwrap();
            add(row, &mut expected);
        }
        // While closures are running.
        let at = random.below(cluster.tasks().count());
        cluster.restart(at);
    }
    coordinator.join().unwrap();
    assert_eq!(read(&counters_of(&strategy).unwrap()), expected);
    drop(coordinator);
    strategy.end_servers().unwrap();
}

// INV-59, INV-60
#[test]
fn each_closure_counts_once_if_any_process_is_killed() {
    if is_task() {
        return;
    }
    watched(|| {
        let mut cluster =
            Cluster::start("coordinator::kills::each_closure_counts_once_if_any_process_is_killed", 2, 2);
        count_under_kills(&mut cluster, kills(4), 100);
        cluster.wait_for_exit();
    });
}

#[test]
fn workers_wait_for_a_lost_server_as_long_as_the_coordinators_strategy() {
    if is_task() {
        return;
    }
    // Workers that wait for their own timeout would take longer than the watchdog of this test permits.
    watched(|| {
        const TEST: &str =
            "coordinator::kills::workers_wait_for_a_lost_server_as_long_as_the_coordinators_strategy";
        let mut cluster = Cluster::start(TEST, 1, 2);
        let strategy = settings(cluster.spec()).timeout(Duration::from_secs(3)).build().unwrap();
        let coordinator = ClusterCoordinator::builder(&strategy).server_failures(1).build().unwrap();
        let counters = coordinator.create_per_worker_value(make_counters, ()).unwrap();
        coordinator.schedule(count, (&counters, 0)).unwrap();
        coordinator.join().unwrap();
        cluster.kill(cluster.server(0));
        coordinator.schedule(count, (&counters, 0)).unwrap();
        let error = coordinator.join().unwrap_err().to_string();
        assert!(error.contains("within 3s") || error.contains("3.0 s"), "{error}");
    });
}
