//! Every kind of fault, of a worker and of the chief, during every operation. The remaining workers name the culprit in
//! time, and the weights are those of a training without the fault.
//!
//! `DISTRIBUTE_TEST_FIGURES=3 cargo test -p distribute --test clusters figures -- --nocapture` runs one cell after
//! another, three times each. It checks their times, and prints the table of docs/clusters/recovery.md, which has the
//! largest ones. With `DISTRIBUTE_TEST_TMPFS=1`, which needs user namespaces, full disks are small file systems that
//! are filled.

use crate::recovery::cell::{Cell, Fault, When};
use crate::recovery::disturbed::undisturbed;
use crate::recovery::figures::Figures;
use crate::recovery::job::WORKERS;
use crate::recovery::worker;
use distribute_testing::{child, watched};
use std::sync::Mutex;
use std::time::Duration;

/// The tolerance for times while cells and other tests run in parallel.
const SLACK: Duration = Duration::from_secs(10);

pub const WORKER: &str = "recovery::matrix::a_worker_in_a_separate_process";

/// The operations in the table of docs/clusters/recovery.md.
const TABLE: [When; 5] =
    [When::BeforeFirstStep, When::InAllReduce, When::BetweenSteps, When::Saving, When::Recovering];

/// Runs a worker in a process that another test starts. This is not a test itself.
#[test]
fn a_worker_in_a_separate_process() {
    if let Some(part) = child::part() {
        worker::live(&part, worker::trained);
    }
}

/// Returns the cells of a fault of the chief and of another worker, for each of the operations `all`.
fn of_each(fault: Fault, all: &[When]) -> Vec<Cell> {
    all.iter().flat_map(|when| [0, 2].map(|worker| Cell { fault, when: *when, worker })).collect()
}

/// Returns the cells of a kind of fault in the table.
fn cells(fault: Fault) -> Vec<Cell> {
    match fault {
        // Only the chief writes.
        Fault::DiskFull => {
            let chief = TABLE.map(|when| Cell { fault, when, worker: 0 });
            let worker = Cell { fault, when: When::BetweenSteps, worker: 2 };
            [&chief[..], &[worker]].concat()
        }
        // A link of the last worker: to the chief, and to the one between.
        Fault::LinkClosed | Fault::LinkSilent => {
            TABLE.iter().flat_map(|when| [0, 1].map(|worker| Cell { fault, when: *when, worker })).collect()
        }
        _ => of_each(fault, &TABLE),
    }
}

/// Runs several cells in parallel.
fn side_by_side(cells: Vec<Cell>, at_once: usize) {
    if child::part().is_some() {
        return;
    }
    watched(|| undisturbed(WORKER));
    let cells = Mutex::new(cells.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(cell) = cells.lock().unwrap().next() else { break };
                    let figures = cell.run(WORKER);
                    assert!(figures.are_kept(cell.fault, SLACK), "{cell:?}: {figures:?}");
                }
            });
        }
    });
}

// INV-42
#[test]
fn killed() {
    side_by_side(cells(Fault::Killed), 3);
}

// INV-42, INV-96
#[test]
fn killed_while_the_chief_saves_in_the_background() {
    side_by_side(of_each(Fault::Killed, &[When::SavingInBackground]), 2);
}

// INV-42
#[test]
fn killed_elsewhere() {
    let places = [When::AfterUpdate, When::PassEnds, When::ClosureEnds, When::TakingOver];
    let again = Cell { fault: Fault::Killed, when: When::Recovering, worker: 1 };
    side_by_side([of_each(Fault::Killed, &places), vec![again]].concat(), 3);
}

// INV-42
#[test]
fn stopped_for_ten_seconds() {
    side_by_side(cells(Fault::Stopped), 10);
}

// INV-42
#[test]
fn a_worker_that_gets_a_notice() {
    side_by_side(cells(Fault::Noticed), 3);
}

// INV-42
#[test]
fn ended_by_sigterm_that_is_no_notice() {
    side_by_side(cells(Fault::Terminated), 3);
}

// INV-42
#[test]
fn a_link_is_closed() {
    side_by_side(cells(Fault::LinkClosed), 3);
}

// INV-42
#[test]
fn a_link_falls_silent() {
    side_by_side(cells(Fault::LinkSilent), 5);
}

// INV-21
#[test]
fn no_room_for_a_checkpoint() {
    side_by_side(cells(Fault::DiskFull), 3);
}

/// Runs only on request, because it takes minutes and must be the only program on the machine.
#[test]
fn figures() {
    let Some(often) = std::env::var("DISTRIBUTE_TEST_FIGURES").ok().filter(|_| child::part().is_none())
    else {
        return;
    };
    let often: usize = often.parse().unwrap();
    undisturbed(WORKER);
    let (mut start, mut broken) = (Duration::ZERO, Vec::new());
    for fault in Fault::ALL {
        for worker in 0..WORKERS {
            let cells: Vec<_> = cells(fault).into_iter().filter(|cell| cell.worker == worker).collect();
            let mut row = format!("| {fault:?} | {worker} |");
            for when in TABLE {
                let cell = cells.iter().find(|cell| cell.when == when);
                let largest = cell.map(|cell| {
                    let all = (0..often).map(|_| cell.run(WORKER));
                    let largest = all.reduce(Figures::larger).unwrap();
                    if !largest.are_kept(fault, Duration::ZERO) {
                        broken.push((*cell, largest));
                    }
                    largest
                });
                start = start.max(largest.and_then(|largest| largest.start).unwrap_or_default());
                row += &format!(" {} |", largest.map(|largest| largest.to_string()).unwrap_or_default());
            }
            if !cells.is_empty() {
                println!("{row}");
            }
        }
    }
    println!("a process runs after {} ms", start.as_millis());
    assert!(broken.is_empty(), "longer than promised: {broken:?}");
}
