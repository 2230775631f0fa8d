//! A worker that is lost after the training has ended: no other worker waits for it longer than configured.

use crate::recovery::disturbed::undisturbed;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::matrix::WORKER;
use crate::recovery::program::Place;
use crate::recovery::worker::GO;
use distribute_testing::watched;
use rustix::process::Signal;
use std::time::Duration;

/// Returns a job whose workers have all finished their training and wait after it.
fn ended() -> Job {
    let mut job = Job::new(WORKER);
    (0..WORKERS).for_each(|worker| job.start(worker, Some(Place::Ended)));
    (0..WORKERS).for_each(|worker| drop(job.wait_for_line(worker, "at Ended", Duration::ZERO)));
    job
}

fn killed(job: &mut Job, worker: usize) {
    job.signal(worker, Signal::KILL);
    job.wait_for_exit(worker);
}

/// Lets a worker run to its end.
fn end(job: &mut Job, worker: usize) {
    job.send(worker, GO);
    let said = job.wait_for_line(worker, "trained ", Duration::ZERO).line;
    assert!(said.contains(&undisturbed(WORKER)), "{said}");
    job.wait_until_ended(worker);
}

// INV-42
#[test]
fn a_worker_that_arrives_after_the_training_is_notified_by_the_remaining_ones() {
    watched(|| {
        let mut job = ended();
        killed(&mut job, 2);
        let restarted = job.now();
        job.start(2, None);
        let said = job.wait_for_line(2, "cannot be joined", restarted).line;
        let expected = "the training has ended on all workers, and worker 0 waits for no worker 2";
        assert!(said.contains("worker 0 at ") && said.contains(expected), "{said}");
        job.wait_for_exit(2);
        [0, 1].iter().for_each(|worker| end(&mut job, *worker));
    });
}

// INV-42
#[test]
fn a_late_worker_without_peers_gives_up_after_its_patience() {
    watched(|| {
        // This also holds for the chief, even if the others are still running.
        for (lost, gone) in [(2, true), (0, true), (0, false)] {
            let mut job = ended();
            killed(&mut job, lost);
            if gone {
                (0..WORKERS).filter(|worker| *worker != lost).for_each(|worker| end(&mut job, worker));
            }
            let restarted = job.now();
            job.patience(lost, Duration::from_secs(1));
            job.start(lost, None);
            let said = job.wait_for_line(lost, "the world is not complete after ", restarted).line;
            let missing = if lost == 0 { "missing: worker 1 " } else { "missing: worker 0 " };
            assert!(said.contains(missing), "{said}");
            job.wait_for_exit(lost);
        }
    });
}

/// Checks worker 2 reporting that it has finished, while worker 1 gets neither this message nor the news that worker 2
/// has exited.
// INV-42
#[test]
fn a_worker_that_missed_the_end_is_notified_at_its_next_rendezvous() {
    watched(|| {
        let mut job = Job::new(WORKER);
        let relay = job.relay(1);
        job.start(0, Some(Place::Ended));
        job.start(1, None);
        job.start(2, Some(Place::Ending));
        job.wait_for_line(2, "at Ending", Duration::ZERO);
        // It has received everything else.
        job.wait_for_line(1, "through", Duration::ZERO);
        relay.fall_silent_one_way();
        end(&mut job, 2);
        job.wait_for_line(0, "at Ended", Duration::ZERO);
        let said = job.wait_for_line(1, "the training stops after step 12", Duration::ZERO).line;
        assert!(said.contains("worker 2 ") && said.contains("the end of the training"), "{said}");
        let said = job.wait_for_line(1, "trained ", Duration::ZERO).line;
        assert!(said.contains(&undisturbed(WORKER)), "{said}");
        job.wait_until_ended(1);
        end(&mut job, 0);
    });
}
