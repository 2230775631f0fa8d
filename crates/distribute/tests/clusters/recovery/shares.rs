//! Three workers that share logical replicas: one that is slow gets fewer of them, and the weights are those of a
//! training in which no worker is slow.

use crate::recovery::in_parent_for;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::replaced::{LIMIT, trained};
use crate::recovery::slowness::{Reaction, Slowness, Work};
use crate::recovery::worker;
use distribute_testing::child;
use std::time::Duration;

const WORKER: &str = "recovery::shares::a_worker_in_a_separate_process";

const REPLICAS: usize = 6;

/// The work of each step. With even shares, the slow worker needs twice as long as the others or longer.
const WORK: Work =
    Work { computing: Duration::from_millis(4), slowness: None, reaction: Reaction::Rebalance };
const LONGER: Duration = Duration::from_millis(80);

/// Runs a worker in a process that another test starts. This is not a test itself.
#[test]
fn a_worker_in_a_separate_process() {
    if let Some(part) = child::part() {
        worker::live(&part, trained);
    }
}

// INV-42, INV-88, INV-114
#[test]
fn a_slow_worker_gets_fewer_logical_replicas() {
    in_parent_for(LIMIT, || {
        let mut undisturbed = Job::new(WORKER).logical(REPLICAS);
        undisturbed.start_all(None);
        let said = undisturbed.wait_for_line(0, "trained ", Duration::ZERO).line;
        let sha256 = said.split_whitespace().nth(1).unwrap();
        let slow = (1, Slowness::Computing(LONGER));
        let mut job = Job::new(WORKER).logical(REPLICAS).working(WORK, Some(slow));
        job.start_all(None);
        for worker in 0..WORKERS {
            let said =
                job.wait_for_line(worker, " of 6 logical replicas instead of 2: ", Duration::ZERO).line;
            let expected = said.contains("worker 1 (") && said.contains(" has 1 of 6 logical replicas");
            assert!(expected && said.contains("it computes longer"), "{said}");
        }
        for worker in 0..WORKERS {
            let said = job.wait_for_line(worker, "trained ", Duration::ZERO).line;
            assert_eq!(said, format!("trained {sha256} 2 0"), "{}", job.story());
            job.wait_until_ended(worker);
        }
    });
}
