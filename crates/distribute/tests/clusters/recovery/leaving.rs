//! SIGTERM to workers of a world that may shrink: they leave, and the others continue at once. If the others cannot
//! continue, all save and exit.

use crate::recovery::disturbed::undisturbed;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::matrix::WORKER;
use crate::recovery::program::Place;
use crate::recovery::worker::{GO, STEP};
use distribute_testing::watched;
use rustix::process::Signal;
use std::time::Duration;

/// The time in which the others have to finish, while other tests run. They would wait longer for a lost worker.
const SOON: Duration = Duration::from_secs(15);

/// Returns a job of which some workers get the notice while worker 2 is at this location. In a step, for example, all
/// learn of all notices when the next step begins. Another worker may stop later.
fn noticed(least: usize, told: &[usize], at: Place, stops: Option<(usize, Place)>) -> Job {
    let mut job = Job::new(WORKER).watching().elastic(least);
    for worker in 0..WORKERS {
        let place = if worker == 2 { Some(at) } else { None };
        let later = stops.filter(|(stopped, _)| *stopped == worker).map(|(_, place)| place);
        job.start(worker, place.or(later));
    }
    job.hear(2, &format!("at {at:?}"), Duration::ZERO);
    for worker in told {
        job.signal(*worker, Signal::TERM);
        job.hear(*worker, "SIGTERM: ", Duration::ZERO);
    }
    job.tell(2, GO);
    job
}

fn trained(job: &mut Job, worker: usize) -> String {
    let said = job.hear(worker, "trained ", Duration::ZERO).line;
    said.split(' ').nth(1).unwrap().to_owned()
}

// INV-44
#[test]
fn who_is_told_to_end_leaves_alone_and_may_come_again() {
    watched(|| {
        let mut job = noticed(2, &[2], Place::Between, Some((1, Place::AtEnd)));
        let left = job.hear(2, "this worker leaves after step ", Duration::ZERO);
        assert!(left.line.ends_with("as it was told to; the other 2 go on"), "{}", left.line);
        job.hear(2, "preempted", left.at);
        job.wait_until_ended(2);
        for other in [0, 1] {
            let said = job.hear(other, "the others meet again after step ", Duration::ZERO);
            assert!(said.line.contains("; worker 2 is task worker 2 at 127.0.0.1:"), "{}", said.line);
            job.hear(other, "2 of 3 have met again, as generation 2", said.at);
            let next = job.hear(other, STEP, said.at).at;
            assert!(next < left.at + SOON, "worker {other}: {:?} later", next - left.at);
        }
        // It is let in between two passes.
        job.hear(1, "at AtEnd", left.at);
        let again = job.now();
        job.start(2, None);
        job.hear(2, "a world was made without worker 2", again);
        job.tell(1, GO);
        job.hear(0, "all have met again, as generation 3", again);
        let weights: Vec<_> = (0..WORKERS).map(|worker| trained(&mut job, worker)).collect();
        assert!(weights.iter().all(|of| *of == weights[0]), "{weights:?}");
        (0..WORKERS).for_each(|worker| job.wait_until_ended(worker));
    });
}

/// Checks that all save one checkpoint and exit, and resume from it when they are restarted.
fn all_end(least: usize, told: &'static [usize]) {
    watched(move || {
        let mut job = noticed(least, told, Place::InStep, None);
        for worker in 0..WORKERS {
            job.hear(worker, "preempted", Duration::ZERO);
            job.wait_until_ended(worker);
        }
        job.hear(0, "after the notice to worker", Duration::ZERO);
        job.start_all(None);
        for worker in 0..WORKERS {
            assert_eq!(trained(&mut job, worker), undisturbed(WORKER));
            job.wait_until_ended(worker);
        }
    });
}

// INV-44
#[test]
fn where_the_first_is_told_to_end_all_save_and_end() {
    all_end(1, &[0]);
}

// INV-44
#[test]
fn where_too_few_would_be_left_all_save_and_end() {
    all_end(2, &[1, 2]);
}
