//! Workers and servers that are killed while closures count.

use crate::counters::{ROWS, add, count, counters_of, make_counters, patient, read};
use crate::support::{Cluster, is_task, kills};
use distribute_testing::{SplitMix, watched};

/// Kills a task of this process's workers and servers from time to time, while closures count.
fn count_under_kills(cluster: &mut Cluster, kills: usize, closures_each: i64) {
    let strategy = cluster.strategy();
    let coordinator = patient(&strategy);
    let counters = coordinator.create_per_worker_value(make_counters, ()).unwrap();
    let (mut random, mut expected) = (SplitMix(kills as u64), vec![0i64; ROWS]);
    for _ in 0..=kills {
        for _ in 0..closures_each {
            let row = random.below(ROWS);
            coordinator.schedule(count, (&counters, row as i64)).unwrap();
            add(row, &mut expected);
        }
        // In the middle of it.
        let at = random.below(cluster.tasks().count());
        cluster.kill(at);
    }
    coordinator.join().unwrap();
    assert_eq!(read(&counters_of(&strategy).unwrap()), expected);
    drop(coordinator);
    strategy.end_servers().unwrap();
}

// INV-59, INV-60
#[test]
fn each_closure_counts_once_whoever_is_killed() {
    if is_task() {
        return;
    }
    watched(|| {
        let mut cluster = Cluster::start("kills::each_closure_counts_once_whoever_is_killed", 2, 2);
        count_under_kills(&mut cluster, kills(4), 100);
        cluster.has_ended();
    });
}
