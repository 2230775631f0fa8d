//! Workers and spares that lose their leaders, one after another.
//!
//! The others elect the next one, spares replace the lost workers, and the weights are those of a training without
//! interruption. A minority ends with an error that says so.

use crate::recovery::disturbed::undisturbed;
use crate::recovery::in_parent;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::matrix;
use crate::recovery::program::{At, EPOCHS, Place, SAVE_EVERY, STEPS, Task};
use crate::recovery::worker::{self, GO, STEP};
use distribute::{Error, Result};
use distribute_testing::{child, watched};
use rustix::process::Signal;
use std::sync::OnceLock;
use std::time::Duration;

const WORKER: &str = "recovery::elected::a_worker_in_a_separate_process";

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
        Err(error @ (Error::UnusedSpare { .. } | Error::Join(_))) => Ok(error.to_string()),
        trained => trained,
    }
}

/// Returns the checksum of the weights of a training of this number of workers without a fault.
fn weights(workers: usize) -> String {
    static OF_FIVE: OnceLock<String> = OnceLock::new();
    if workers == WORKERS {
        return undisturbed(matrix::WORKER);
    }
    let train = || {
        let mut job = Job::with_workers(WORKER, workers, 0);
        job.start_all(None);
        let ended = job.wait_for_line(0, "trained ", Duration::ZERO).line;
        (0..workers).for_each(|worker| job.wait_until_ended(worker));
        ended.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(workers, 5);
    OF_FIVE.get_or_init(train).clone()
}

fn kill(job: &mut Job, worker: usize) {
    job.signal(worker, Signal::KILL);
    job.wait_for_exit(worker);
}

/// Waits until the workers `members` have exited with the weights of an uninterrupted training, in the given generation
/// of the group.
fn end(job: &mut Job, workers: usize, members: &[usize], generation: u64) {
    let weights = weights(workers);
    for worker in members {
        let said = job.wait_for_line(*worker, "trained ", Duration::ZERO).line;
        assert_eq!(said, format!("trained {weights} {generation}"), "{}", job.story());
        job.wait_until_ended(*worker);
    }
}

fn unused(job: &mut Job, spare: usize) {
    job.wait_for_line(spare, UNUSED, Duration::ZERO);
    job.wait_until_ended(spare);
}

/// Kills the first worker while it has stopped at a place, and waits until the others have made the next step. One of
/// the spares takes part.
fn first_killed(workers: usize, spares: usize, place: Place) {
    watched(move || {
        let mut job = Job::with_workers(WORKER, workers, spares);
        let all = workers + spares;
        job.start_all(Some((0, place)));
        (workers..all).for_each(|spare| drop(job.wait_for_line(spare, WAITS, Duration::ZERO)));
        job.wait_for_line(0, &format!("at {place:?}"), Duration::ZERO);
        let fault = job.now();
        job.signal(0, Signal::KILL);
        let taken: Vec<_> = (workers..all).map(|spare| (spare, TAKES_PART)).collect();
        let spare = job.wait_for_any(&taken, fault).worker;
        let members: Vec<_> = (1..workers).chain([spare]).collect();
        let next = members.iter().map(|member| job.wait_for_line(*member, STEP, fault).at).max().unwrap();
        println!(
            "{workers} workers, {spares} spares, {place:?}: {:?} from the kill to the next step",
            next - fault
        );
        job.wait_for_exit(0);
        end(&mut job, workers, &members, 2);
    });
}

// INV-42, INV-100, INV-101, INV-111
#[test]
fn a_spare_takes_the_place_of_the_first_worker_of_three() {
    if child::part().is_none() {
        for (spares, place) in
            [(1, Place::First), (1, Place::InStep), (2, Place::Between), (1, Place::Saving)]
        {
            first_killed(WORKERS, spares, place);
        }
    }
}

// INV-42, INV-100, INV-101, INV-111
#[test]
fn a_spare_takes_the_place_of_the_first_worker_of_five() {
    if child::part().is_none() {
        first_killed(5, 1, Place::Between);
        first_killed(5, 2, Place::InStep);
    }
}

// INV-42, INV-111
#[test]
fn the_heir_of_the_first_worker_is_replaced_as_well() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 2);
        job.start(0, Some(Place::Between));
        job.start(1, Some(Place::AtEnd));
        (2..5).for_each(|worker| job.start(worker, None));
        [3, 4].into_iter().for_each(|spare| drop(job.wait_for_line(spare, WAITS, Duration::ZERO)));
        job.wait_for_line(0, "at Between", Duration::ZERO);
        kill(&mut job, 0);
        job.wait_for_line(1, "at AtEnd", Duration::ZERO);
        kill(&mut job, 1);
        job.wait_for_any(&[(3, &format!("{TAKES_PART}3")), (4, &format!("{TAKES_PART}3"))], Duration::ZERO);
        end(&mut job, WORKERS, &[2, 3, 4], 3);
    });
}

// INV-42, INV-111
#[test]
fn a_first_worker_that_is_started_again_is_the_next_spare() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 1).with_ports();
        job.start(0, Some(Place::Between));
        job.start(1, Some(Place::AtEnd));
        [2, 3].into_iter().for_each(|worker| job.start(worker, None));
        job.wait_for_line(3, WAITS, Duration::ZERO);
        job.wait_for_line(0, "at Between", Duration::ZERO);
        kill(&mut job, 0);
        job.wait_for_line(1, "at AtEnd", Duration::ZERO);
        // It finds the leader, which is another one than at its start.
        let again = job.now();
        job.start(0, None);
        job.wait_for_line(0, WAITS, again);
        kill(&mut job, 1);
        job.wait_for_line(0, &format!("{TAKES_PART}3"), again);
        // It has the lowest number, and is the chief.
        end(&mut job, WORKERS, &[0, 2, 3], 3);
    });
}

// INV-111
#[test]
fn a_minority_ends_with_an_error_that_says_so_and_begins_no_training() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 1).with_ports();
        // These are too few, of which one was started again.
        [0, 2].into_iter().for_each(|worker| job.patience(worker, Duration::from_secs(3)));
        [0, 2].into_iter().for_each(|worker| job.start(worker, None));
        for worker in [0, 2] {
            let said = job.wait_for_line(worker, "minority: this process sees ", Duration::ZERO).line;
            assert!(said.contains(" of 4 tasks after ") && said.contains("and needs 3; missing: "), "{said}");
            job.wait_until_ended(worker);
        }
        assert_eq!(job.lines(0, STEP), Vec::<String>::new());
    });
}

// INV-42, INV-111
#[test]
fn a_world_that_is_cut_in_two_continues_on_one_side_alone() {
    in_parent(|| {
        let (mut job, network) = Job::with_spares(WORKER, 2).with_network();
        // Three of five tasks are needed, and these are two of the three workers.
        let minority = [0, 1];
        minority.into_iter().for_each(|worker| job.patience_after_loss(worker, Duration::from_secs(8)));
        [0, 1, 3, 4].into_iter().for_each(|worker| job.start(worker, None));
        job.start(2, Some(Place::Between));
        [3, 4].into_iter().for_each(|spare| drop(job.wait_for_line(spare, WAITS, Duration::ZERO)));
        job.wait_for_line(2, "at Between", Duration::ZERO);
        let made = job.lines(2, STEP).len();
        for worker in minority {
            while job.lines(worker, STEP).len() < made {
                job.listen_until(job.now() + Duration::from_millis(10));
            }
        }
        network.cut(&minority);
        job.send(2, GO);
        [3, 4].into_iter().for_each(|spare| {
            drop(job.wait_for_line(spare, &format!("{TAKES_PART}2"), Duration::ZERO));
        });
        for worker in minority {
            let said = job.wait_for_line(worker, "minority: this process sees ", Duration::ZERO).line;
            let says = "and needs 3: the others may have continued without it";
            assert!(said.contains(" of 5 tasks after ") && said.contains(says), "{said}");
            job.wait_until_ended(worker);
            assert_eq!(job.lines(worker, STEP).len(), made, "{}", job.story());
        }
        end(&mut job, WORKERS, &[2, 3, 4], 2);
    });
}

// INV-42, INV-111
#[test]
fn a_worker_that_was_cut_off_does_not_undo_what_restarted_workers_have_restored() {
    in_parent(|| {
        let (mut job, network) = Job::with_spares(WORKER, 2).with_network();
        job.start(1, Some(Place::AtEnd));
        job.start(2, Some(Place::Between));
        [0, 3, 4].into_iter().for_each(|worker| job.start(worker, None));
        [3, 4].into_iter().for_each(|spare| drop(job.wait_for_line(spare, WAITS, Duration::ZERO)));
        job.wait_for_line(2, "at Between", Duration::ZERO);
        network.cut(&[0]);
        job.send(2, GO);
        // The others save a checkpoint as generation 2, and are all killed.
        job.wait_for_line(1, "at AtEnd", Duration::ZERO);
        (1..5).for_each(|worker| kill(&mut job, worker));
        let (again, made) = (job.now(), job.lines(1, STEP).len() as u64);
        job.start(1, Some(Place::AtEnd));
        [2, 3].into_iter().for_each(|worker| job.start(worker, None));
        job.wait_for_line(1, "at AtEnd", again);
        // It was in generation 1, as these are, but they continue from the state of generation 2.
        network.heal();
        job.wait_for_line(0, WAITS, again);
        job.send(1, GO);
        unused(&mut job, 0);
        end(&mut job, WORKERS, &[1, 2, 3], 1);
        let repeated = job.lines(1, STEP).len() as u64 - made;
        assert_eq!(repeated, EPOCHS * STEPS - 2 * SAVE_EVERY, "{}", job.story());
    });
}

// INV-42, INV-111
#[test]
fn a_leader_that_is_suspended_finds_itself_a_spare() {
    in_parent(|| {
        let mut job = Job::with_spares(WORKER, 1).with_ports();
        job.start(0, None);
        job.start(1, Some(Place::AtEnd));
        job.start(2, Some(Place::Between));
        job.start(3, None);
        job.wait_for_line(3, WAITS, Duration::ZERO);
        job.wait_for_line(2, "at Between", Duration::ZERO);
        job.signal(0, Signal::STOP);
        job.send(2, GO);
        job.wait_for_line(3, &format!("{TAKES_PART}2"), Duration::ZERO);
        job.wait_for_line(1, "at AtEnd", Duration::ZERO);
        job.signal(0, Signal::CONT);
        job.wait_for_line(0, WAITS, Duration::ZERO);
        job.send(1, GO);
        unused(&mut job, 0);
        end(&mut job, WORKERS, &[1, 2, 3], 2);
    });
}
