//! Tests in which any task is killed, even the coordinator, which then resumes its job from its last checkpoint.
//!
//! `DISTRIBUTE_TEST_KILLS=1000 cargo test -p distribute --test clusters restarts -- --nocapture` kills more often, and
//! prints the time from each kill until the next round of closures has ended.

use crate::coordinator::counters::{ROWS, add, count, counters_of, make_counters, patient, read};
use crate::coordinator::support::{kills, strategy};
use crate::support::cluster::{Cluster, MINUTE, is_task_or};
use distribute::checkpoint::CheckpointManager;
use distribute::cluster::{ClusterSpec, Job, Stopwatch};
use distribute::{Checkpoint, HostTensor};
use distribute_testing::{SplitMix, watched_for};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The number of closures of a round.
const CLOSURES: usize = 100;
/// The beginning of the line that ends a round.
const ROUND: &str = "round ";
/// The beginning of the chief's last line, after it has counted all rounds.
const ENDED: &str = "closures that ended, each counted once: ";

/// Returns the rows that the closures of a round increment.
fn rows_of(round: u64) -> Vec<usize> {
    let mut random = SplitMix(round);
    (0..CLOSURES).map(|_| random.below(ROWS)).collect()
}

/// Returns the numbers that a round adds to each row.
fn counts_of(round: u64) -> Vec<i64> {
    let mut counts = vec![0; ROWS];
    rows_of(round).into_iter().for_each(|row| add(row, &mut counts));
    counts
}

/// Runs the chief, which schedules rounds of closures. After each round it saves a checkpoint and prints a line, until
/// it finds the request to stop.
fn coordinate(spec: ClusterSpec, folder: &Path) {
    let strategy = strategy(spec);
    let coordinator = patient(&strategy);
    let counters = counters_of(&strategy).unwrap();
    let manager = CheckpointManager::new(folder.join("saved")).unwrap();
    let save = |round: u64| {
        let checkpoint = Checkpoint::new().part("counters", &counters).metadata("round", round);
        checkpoint.save_to(&manager).unwrap();
    };
    // From here on, closures of an earlier coordinator change nothing.
    let found = read(&counters);
    let restored = Checkpoint::new().part("counters", &counters).restore_latest(&manager).unwrap();
    let mut round = restored.map_or(0, |it| it.metadata("round").unwrap().as_u64().unwrap());
    if round == 0 {
        counters.assign(HostTensor::new(vec![0i64; ROWS], [ROWS, 1]).unwrap()).unwrap();
    }
    // Servers have all acknowledged changes, and have made none of the later ones twice.
    for ((found, saved), more) in found.into_iter().zip(read(&counters)).zip(counts_of(round)) {
        assert!((saved..=saved + more).contains(&found), "{found} after {saved} and up to {more} more");
    }
    let each = coordinator.create_per_worker_value(make_counters, ()).unwrap();
    while !folder.join("end").exists() {
        for row in rows_of(round) {
            coordinator.schedule(count, (&each, row as i64)).unwrap();
        }
        coordinator.join().unwrap();
        round += 1;
        save(round);
        println!("{ROUND}{round}");
    }
    let mut expected = vec![0; ROWS];
    for round in 0..round {
        rows_of(round).into_iter().for_each(|row| add(row, &mut expected));
    }
    assert_eq!(read(&counters), expected);
    println!("{ENDED}{}", round * CLOSURES as u64);
    drop((coordinator, each));
    strategy.end_servers().unwrap();
}

// INV-59, INV-60, FT-7
#[test]
fn ft_7_a_killed_coordinator_resumes_its_job_and_each_closure_counts_once() {
    const TEST: &str =
        "coordinator::restarts::ft_7_a_killed_coordinator_resumes_its_job_and_each_closure_counts_once";
    if is_task_or(coordinate) {
        return;
    }
    let kills = kills(6);
    // Each kill has its own time limit, so the limit of the watchdog depends on their number.
    watched_for(MINUTE * (kills as u32).div_ceil(20), move || {
        let mut cluster = Cluster::builder(TEST, 3, 2).with(Job::Chief).start();
        let tasks: Vec<_> = cluster.tasks().cloned().collect();
        let mut random = SplitMix(kills as u64);
        let mut took = BTreeMap::<_, Vec<Duration>>::new();
        let next =
            |cluster: &Cluster| cluster.next_line(ROUND, MINUTE).expect("a round takes longer than a minute");
        next(&cluster);
        for kill in 0..kills {
            // At a random point of a round. The first task that is killed is the chief.
            cluster.next_line("nothing", Duration::from_millis(random.below(100) as u64));
            let at = if kill == 0 { tasks.len() - 1 } else { random.below(tasks.len()) };
            let clock = Stopwatch::start();
            cluster.restart(at);
            next(&cluster);
            took.entry(tasks[at].job.clone()).or_default().push(clock.elapsed());
        }
        fs::write(cluster.folder().join("end"), "").unwrap();
        let ended = cluster.next_line(ENDED, MINUTE).unwrap();
        cluster.wait_for_exit();
        for (job, mut took) in took {
            took.sort();
            let (half, most) = (took[took.len() / 2], took[took.len() - 1]);
            println!(
                "{job} killed {} times: a round was over after {half:.0?}, {most:.0?} at most",
                took.len()
            );
        }
        println!("{ended}");
    });
}
