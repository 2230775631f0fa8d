//! SIGTERM to workers of a world that may shrink: they leave, and the others continue at once. If the others cannot
//! continue, all workers save and exit.

use crate::recovery::disturbed::undisturbed;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::matrix::WORKER;
use crate::recovery::program::Place;
use crate::recovery::worker::{GO, STEP};
use distribute_testing::watched;
use rustix::process::Signal;
use std::time::Duration;

/// The time within which the others must finish while other tests run. If they waited for a lost worker, they would
/// take longer.
const SOON: Duration = Duration::from_secs(15);

/// Returns a job in which the workers `told` get the notice while worker 2 is at the point `at`. In a step, for
/// example, all workers receive all notices when the next step begins. `stops` is a later point at which another worker
/// stops.
fn job_with_notice(least: usize, told: &[usize], at: Place, stops: Option<(usize, Place)>) -> Job {
    let mut job = Job::new(WORKER).watching().elastic(least);
    for worker in 0..WORKERS {
        let place = if worker == 2 { Some(at) } else { None };
        let later = stops.filter(|(stopped, _)| *stopped == worker).map(|(_, place)| place);
        job.start(worker, place.or(later));
    }
    job.wait_for_line(2, &format!("at {at:?}"), Duration::ZERO);
    for worker in told {
        job.signal(*worker, Signal::TERM);
        job.wait_for_line(*worker, "SIGTERM: ", Duration::ZERO);
    }
    job.send(2, GO);
    job
}

fn trained(job: &mut Job, worker: usize) -> String {
    let said = job.wait_for_line(worker, "trained ", Duration::ZERO).line;
    said.split(' ').nth(1).unwrap().to_owned()
}

// INV-44
#[test]
fn a_worker_that_gets_a_notice_leaves_alone_and_may_return() {
    watched(|| {
        let mut job = job_with_notice(2, &[2], Place::Between, Some((1, Place::AtEnd)));
        let left = job.wait_for_line(2, "this worker leaves after step ", Duration::ZERO);
        assert!(left.line.ends_with("because of its notice; the other 2 continue"), "{}", left.line);
        job.wait_for_line(2, "preempted", left.at);
        job.wait_until_ended(2);
        for other in [0, 1] {
            let said = job.wait_for_line(other, "the others re-form the group after step ", Duration::ZERO);
            assert!(said.line.contains("; worker 2 is task worker 2 at 127.0.0.1:"), "{}", said.line);
            job.wait_for_line(other, "2 of 3 have re-formed the group, as generation 2", said.at);
            let next = job.wait_for_line(other, STEP, said.at).at;
            assert!(next < left.at + SOON, "worker {other}: {:?} later", next - left.at);
        }
        // The worker is admitted between two passes.
        job.wait_for_line(1, "at AtEnd", left.at);
        let again = job.now();
        job.start(2, None);
        job.wait_for_line(2, "the group was formed without worker 2", again);
        job.send(1, GO);
        job.wait_for_line(0, "all have re-formed the group, as generation 3", again);
        let weights: Vec<_> = (0..WORKERS).map(|worker| trained(&mut job, worker)).collect();
        assert!(weights.iter().all(|of| *of == weights[0]), "{weights:?}");
        (0..WORKERS).for_each(|worker| job.wait_until_ended(worker));
    });
}

/// Checks that all workers save one checkpoint and exit, and resume from it when they are restarted.
fn check_all_exit(least: usize, told: &'static [usize]) {
    watched(move || {
        let mut job = job_with_notice(least, told, Place::InStep, None);
        for worker in 0..WORKERS {
            job.wait_for_line(worker, "preempted", Duration::ZERO);
            job.wait_until_ended(worker);
        }
        job.wait_for_line(0, "after the notice to worker", Duration::ZERO);
        job.start_all(None);
        for worker in 0..WORKERS {
            assert_eq!(trained(&mut job, worker), undisturbed(WORKER));
            job.wait_until_ended(worker);
        }
    });
}

// INV-44
#[test]
fn a_notice_to_the_first_worker_makes_all_save_and_exit() {
    check_all_exit(1, &[0]);
}

// INV-44
#[test]
fn if_too_few_workers_would_remain_all_save_and_exit() {
    check_all_exit(2, &[1, 2]);
}
