//! Logical replicas in processes that are killed, restarted and started late, as a seed decides. The weights are always
//! those of an undisturbed training.

use crate::recovery::job::{Job, WORKERS};
use crate::recovery::matrix::WORKER;
use crate::recovery::program::Place;
use crate::recovery::worker::{GO, STEP};
use distribute_testing::watched;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::Duration;

/// The environment variables with the number of random schedules and the seed of the first one.
const SCHEDULES: &str = "DISTRIBUTE_TEST_SCHEDULES";
const SEED: &str = "DISTRIBUTE_TEST_SEED";

/// The number of logical replicas, which is greater than the number of workers, so that shares are uneven in worlds of
/// two and of three.
const REPLICAS: usize = 5;

const TRAINED: &str = "trained ";
const WORLD: &str = " replicas in sync";

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// A generator of the decisions of one schedule.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % limit
    }
}

fn job() -> Job {
    Job::new(WORKER).logical(REPLICAS).elastic(1)
}

fn sha256(line: &str) -> String {
    line.split(' ').nth(1).unwrap().to_owned()
}

/// Returns the weights of an undisturbed training with one worker.
fn undisturbed() -> String {
    let mut job = job();
    job.start(0, None);
    let line = job.wait_for_line(0, TRAINED, Duration::ZERO).line;
    job.wait_until_ended(0);
    sha256(&line)
}

/// Waits until a worker is at the given point or the training ends, and returns whether the worker reached the point.
fn reaches(job: &mut Job, worker: usize, place: Place, since: Duration) -> bool {
    let there = format!("at {place:?}");
    job.wait_for_any(&[(worker, &there), (0, TRAINED)], since).worker == worker
}

fn kill(job: &mut Job, worker: usize) {
    job.signal(worker, Signal::KILL);
    job.wait_for_exit(worker);
}

/// Trains with the disturbances that a seed decides, and checks that all workers of the last world have the weights
/// `expected`. Returns the number of workers of each world in which worker 0 was.
fn disturbed(seed: u64, expected: &str) -> Vec<usize> {
    let (mut random, mut job) = (Random(seed), job());
    let (one, other) = if random.below(2) == 0 { (1, 2) } else { (2, 1) };
    let place =
        [Place::First, Place::Between, Place::InStep, Place::AfterUpdate, Place::AtEnd][random.below(5)];
    let (is_late, second) = (random.below(2) == 0, (random.below(3) > 0).then_some(Place::AtEnd));
    let start_other = |job: &mut Job| job.start(other, second);
    job.start(one, Some(place));
    if !is_late {
        start_other(&mut job);
        job.wait_for_line(other, "started", Duration::ZERO);
    }
    job.wait_for_line(one, "started", Duration::ZERO);
    job.start(0, None);
    if reaches(&mut job, one, place, Duration::ZERO) {
        kill(&mut job, one);
        let then = job.now();
        match random.below(3) {
            0 => job.start(one, None),
            1 => {
                job.wait_for_any(&[(0, STEP), (0, TRAINED), (other, "at AtEnd")], then);
                job.start(one, None);
            }
            _ => {}
        }
    }
    let then = job.now();
    if is_late {
        start_other(&mut job);
    }
    if let Some(place) = second
        && reaches(&mut job, other, place, if is_late { then } else { Duration::ZERO })
    {
        match random.below(3) {
            0 => kill(&mut job, other),
            1 => {
                // The first worker is needed: the others wait until it is restarted.
                kill(&mut job, 0);
                job.start(0, None);
                job.send(other, GO);
            }
            _ => job.send(other, GO),
        }
    }
    job.wait_for_line(0, TRAINED, Duration::ZERO);
    let worlds = worlds(&mut job);
    let last = worlds.last().copied().unwrap();
    let mut trained = BTreeMap::new();
    while trained.len() < last {
        let missing: Vec<_> = (0..WORKERS)
            .filter(|worker| !trained.contains_key(worker))
            .map(|worker| (worker, TRAINED))
            .collect();
        let said = job.wait_for_any(&missing, Duration::ZERO);
        trained.insert(said.worker, sha256(&said.line));
    }
    assert!(trained.values().all(|of| of == expected), "seed {seed}: {trained:?}\n{}", job.story());
    worlds
}

/// Returns the number of workers of each world in which worker 0 was.
fn worlds(job: &mut Job) -> Vec<usize> {
    let workers = |line: String| {
        let of = line.split_once("worker 0 of ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        of.unwrap_or(1)
    };
    job.lines(0, WORLD).into_iter().map(workers).collect()
}

// INV-42, INV-43, INV-88
#[test]
fn whatever_happens_the_weights_are_those_of_an_undisturbed_training() {
    let (expected, seed) = (watched(undisturbed), number(SEED, 1));
    let mut sizes: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    for seed in seed..seed + number(SCHEDULES, 3) {
        let expected = expected.clone();
        *sizes.entry(watched(move || disturbed(seed, &expected))).or_default() += 1;
    }
    println!("numbers of workers, and how often: {sizes:?}");
}
