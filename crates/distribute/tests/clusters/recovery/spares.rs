//! Three workers and spares: a spare replaces a worker that is killed, and the weights are those of a training without
//! interruption.
//!
//! `DISTRIBUTE_TEST_KILLS=100 cargo test -p distribute --test clusters recovery::spares::kills -- --nocapture` kills
//! 100 workers, and prints the times of docs/clusters/recovery.md.

use crate::recovery::disturbed::undisturbed;
use crate::recovery::in_parent;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::matrix;
use crate::recovery::program::{At, Place, Task};
use crate::recovery::worker::{self, GO, STEP};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job as Kind};
use distribute::strategy::TableHosts;
use distribute::{Error, ErrorKind, Result, prelude::*};
use distribute_testing::{Port, child, watched, watched_for};
use rustix::process::Signal;
use std::ops::RangeInclusive;
use std::time::Duration;

const WORKER: &str = "recovery::spares::a_worker_in_a_separate_process";

/// The number of the spare, which is the task after the workers.
const SPARE: usize = WORKERS;

const WAITS: &str = "waits as a spare";
const TAKES_PART: &str = "a spare that takes part from now on, as generation ";
const UNUSED: &str = "was not needed";

/// Runs a worker in a process that another test starts. This is not a test itself.
#[test]
fn a_worker_in_a_separate_process() {
    if let Some(part) = child::part() {
        worker::live(&part, trained);
    }
}

fn trained(task: &Task, at: &At) -> Result<String> {
    match worker::trained(task, at) {
        Err(error @ Error::UnusedSpare { .. }) => {
            assert_eq!(error.kind(), ErrorKind::Stale);
            Ok(error.to_string())
        }
        trained => trained,
    }
}

/// Starts a job with a spare. Returns when the spare waits and a worker has stopped at the given point.
fn start(stop_at: (usize, Place)) -> Job {
    let mut job = Job::with_spares(WORKER, 1);
    job.start_all(Some(stop_at));
    job.wait_for_line(SPARE, WAITS, Duration::ZERO);
    job.wait_for_line(stop_at.0, &format!("at {:?}", stop_at.1), Duration::ZERO);
    job
}

fn kill(job: &mut Job, worker: usize) {
    job.signal(worker, Signal::KILL);
    job.wait_for_exit(worker);
}

/// Waits until the workers `members` have exited with the weights of an uninterrupted training, in the given generation
/// of the group.
fn end(job: Job, members: &[usize], generation: u64) {
    end_in(job, members, generation..=generation);
}

/// Waits until the workers `members` have exited with the weights of an uninterrupted training, in one of the given
/// generations of the group.
fn end_in(mut job: Job, members: &[usize], generations: RangeInclusive<u64>) {
    let undisturbed = undisturbed(matrix::WORKER);
    for worker in members {
        let said = job.wait_for_line(*worker, "trained ", Duration::ZERO).line;
        let is_said = |generation| said == format!("trained {undisturbed} {generation}");
        assert!(generations.clone().any(is_said), "{said}: {}", job.story());
        job.wait_until_ended(*worker);
    }
}

fn unused(job: &mut Job, spare: usize) {
    job.wait_for_line(spare, UNUSED, Duration::ZERO);
    job.wait_until_ended(spare);
}

/// Kills `worker` while a worker has stopped at the given point. Checks that the spare, which has already built its
/// model, replaces it.
fn killed_at(stop_at: (usize, Place), worker: usize) {
    watched(move || {
        let mut job = start(stop_at);
        kill(&mut job, worker);
        if stop_at.0 != worker {
            job.send(stop_at.0, GO);
        }
        job.wait_for_line(SPARE, &format!("{TAKES_PART}2"), Duration::ZERO);
        let members: Vec<_> = (0..=SPARE).filter(|member| *member != worker).collect();
        end(job, &members, 2);
    });
}

// INV-42, INV-100, INV-101
#[test]
fn a_spare_takes_the_place_of_a_worker_that_is_killed() {
    if child::part().is_some() {
        return;
    }
    for (place, worker) in [
        (Place::First, 1),
        (Place::Between, 2),
        (Place::InStep, 1),
        (Place::InStep, 2),
        (Place::AfterUpdate, 1),
        (Place::AtEnd, 2),
        (Place::Ending, 1),
    ] {
        killed_at((worker, place), worker);
    }
    // While the chief saves.
    killed_at((0, Place::Saving), 1);
    killed_at((0, Place::Saving), 2);
}

// INV-42, INV-100
#[test]
fn a_worker_that_is_started_again_is_the_next_spare() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 1);
        job.start(0, None);
        job.start(1, Some(Place::Between));
        job.start(2, Some(Place::AtEnd));
        job.start(SPARE, None);
        job.wait_for_line(SPARE, WAITS, Duration::ZERO);
        job.wait_for_line(1, "at Between", Duration::ZERO);
        kill(&mut job, 1);
        job.wait_for_line(2, "at AtEnd", Duration::ZERO);
        let again = job.now();
        job.start(1, None);
        job.wait_for_line(1, WAITS, again);
        kill(&mut job, 2);
        job.wait_for_line(1, &format!("{TAKES_PART}3"), again);
        end(job, &[0, 1, SPARE], 3);
    });
}

// INV-100
#[test]
fn a_spare_that_is_not_needed_ends_with_the_others() {
    in_parent(|| {
        let mut job = start((2, Place::Between));
        job.send(2, GO);
        unused(&mut job, SPARE);
        end(job, &[0, 1, 2], 1);
    });
}

// INV-44, INV-100, INV-101
#[test]
fn a_spare_waits_for_the_next_start_if_all_save_and_exit() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 1).watching();
        job.start_all(Some((2, Place::Between)));
        job.wait_for_line(SPARE, WAITS, Duration::ZERO);
        job.wait_for_line(2, "at Between", Duration::ZERO);
        job.signal(1, Signal::TERM);
        job.wait_for_line(1, "SIGTERM: ", Duration::ZERO);
        job.send(2, GO);
        for worker in 0..WORKERS {
            job.wait_for_line(worker, "preempted", Duration::ZERO);
            job.wait_until_ended(worker);
        }
        let again = job.now();
        (0..WORKERS).for_each(|worker| job.start(worker, None));
        let undisturbed = undisturbed(matrix::WORKER);
        let mut trained = 0;
        for task in 0..=SPARE {
            // The spare may connect before one of the others.
            let said = job.wait_for_any(&[(task, "trained "), (task, UNUSED)], again).line;
            job.wait_until_ended(task);
            if said.contains("trained ") {
                assert!(said.contains(&undisturbed), "{}", job.story());
                trained += 1;
            }
        }
        assert_eq!(trained, WORKERS, "{}", job.story());
    });
}

// INV-100
#[test]
fn a_spare_that_is_lost_harms_nobody() {
    in_parent(|| {
        let mut job = start((2, Place::Between));
        kill(&mut job, SPARE);
        job.send(2, GO);
        end(job, &[0, 1, 2], 1);
    });
}

// INV-42, INV-100
#[test]
fn a_spare_that_is_lost_while_it_receives_the_state_is_replaced_in_turn() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 1);
        job.start(0, None);
        job.start(1, Some(Place::Between));
        job.start(2, None);
        job.start(SPARE, Some(Place::TakingOver));
        job.wait_for_line(SPARE, WAITS, Duration::ZERO);
        job.wait_for_line(1, "at Between", Duration::ZERO);
        kill(&mut job, 1);
        job.wait_for_line(SPARE, "at TakingOver", Duration::ZERO);
        kill(&mut job, SPARE);
        job.start(1, None);
        end(job, &[0, 1, 2], 3);
    });
}

// INV-42, INV-100, INV-111. With the ports of all tasks, the new process finds the others wherever they meet.
#[test]
fn the_first_worker_is_replaced_by_its_own_new_process_or_by_the_spare() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 1).with_ports();
        job.start_all(Some((0, Place::InStep)));
        job.wait_for_line(SPARE, WAITS, Duration::ZERO);
        job.wait_for_line(0, "at InStep", Duration::ZERO);
        kill(&mut job, 0);
        let again = job.now();
        job.start(0, None);
        let idle = job.wait_for_any(&[(0, UNUSED), (SPARE, UNUSED)], again).worker;
        job.wait_until_ended(idle);
        let members: Vec<_> = (0..=SPARE).filter(|member| *member != idle).collect();
        // The spare may leave the leader for the new process, and the leader notices that after it has begun a world.
        end_in(job, &members, 2..=3);
    });
}

#[test]
fn a_program_without_a_training_is_refused() {
    watched(|| {
        let reserved = Port::reserve();
        let port = reserved.number();
        let builder = |place: usize| {
            let addresses: Vec<_> =
                (0..3).map(|place| format!("127.0.0.1:{}", if place == 0 { port } else { 0 })).collect();
            let cluster: ClusterSpec = format!("{{\"worker\": {addresses:?}}}").parse().unwrap();
            let resolver = SimpleClusterResolver::new(cluster).with_task(Kind::Worker.task(place));
            MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).spares(1)
        };
        let error = builder(0).tables(TableHosts::Workers).build().unwrap_err().to_string();
        assert!(error.contains("leave out min_workers, spares and their environment variables"), "{error}");
        std::thread::scope(|scope| {
            for place in 0..2 {
                scope.spawn(move || {
                    let strategy = builder(place).build().unwrap();
                    assert_eq!(strategy.world().workers(), 2);
                    let error = strategy.run((), |_, ()| Ok(())).unwrap_err().to_string();
                    assert!(error.contains("the cluster has 1 spare (spares, DISTRIBUTE_SPARES)"), "{error}");
                });
            }
        });
    });
}

/// Returns the time from a kill to the next step of all workers.
fn killed(worker: usize, place: Place) -> Duration {
    let mut job = start((worker, place));
    let fault = job.now();
    job.signal(worker, Signal::KILL);
    let members: Vec<_> = (0..=SPARE).filter(|member| *member != worker).collect();
    let next = members.iter().map(|member| job.wait_for_line(*member, STEP, fault).at).max().unwrap();
    job.wait_for_exit(worker);
    end(job, &members, 2);
    next - fault
}

// INV-42, INV-100
#[test]
fn kills() {
    if child::part().is_some() {
        return;
    }
    let kills: usize = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(2, |kills| kills.parse().unwrap());
    watched_for(Duration::from_secs(60 + 10 * kills as u64), move || {
        let places = [Place::InStep, Place::Between, Place::First];
        let mut times: Vec<_> = (0..kills).map(|kill| killed(1 + kill % 2, places[kill / 2 % 3])).collect();
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        println!("{kills} kills: p50 {:?}, p90 {:?}, p99 {:?}, max {:?}", at(50), at(90), at(99), at(100));
        assert!(at(50) < Duration::from_secs(5), "{times:?}");
    });
}
