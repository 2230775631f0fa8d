//! Processes that fail, time out, are suspended or killed, or were started with wrong options.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use distribute_cluster::{Blame, Deadline, Fault, Fingerprint, Operation, ReplicaStatus, Stopwatch};
use distribute_collective::Failure;
use distribute_collective::group::{Group, GroupCall, Order, Session, SumOptions};
use distribute_mpi::{Error, Settings};
use distribute_testing::child;
use std::panic::Location;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::{mpirun, on_ranks, started};

const LONG: Duration = Duration::from_secs(40);

fn calling(session: &Session, timeout: Duration) -> GroupCall<'_> {
    let call = Fingerprint::new(Operation::AllReduce, "numbers", Location::caller());
    GroupCall::new(session, vec![ReplicaStatus::waiting(session.world().worker(), call)], timeout)
}

fn meet(session: &Session, timeout: Duration) -> Result<usize, Arc<Blame>> {
    match calling(session, timeout).all_gather_bytes(Bytes::from_static(b"here")) {
        Ok(all) => Ok(all.len()),
        Err(Failure::Blame(blame)) => Err(blame),
        Err(other) => panic!("{other}"),
    }
}

fn sum(session: &Session, timeout: Duration) -> Result<Vec<u8>, Arc<Blame>> {
    let options = SumOptions { order: Order::Fast, ..SumOptions::default() };
    let weights = vec![1f32; session.world().workers()];
    match calling(session, timeout).all_reduce_vectors(&[vec![0; 4000].into()], &weights, &options) {
        Ok(sum) => Ok(sum.concat()),
        Err(Failure::Blame(blame)) => Err(blame),
        Err(other) => panic!("{other}"),
    }
}

fn run(body: impl FnOnce(Group)) {
    let ran = distribute_mpi::run(Settings::default(), |group| {
        body(group);
        Ok::<(), Error>(())
    });
    ran.unwrap();
}

/// Returns whether a process is running. A zombie does not count.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

fn signal(which: &str, pid: u32) {
    let sent = Command::new("kill").args([which, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

// INV-2
#[test]
fn a_worker_that_ends_or_is_late_is_named_on_all_others() {
    on_ranks("a_worker_that_ends_or_is_late_is_named_on_all_others", &[3], || {
        run(|group| {
            let (late, next, last) = (group.open("late", 1), group.open("next", 2), group.open("last", 3));
            let is_late = group.world().worker() == 1;
            if !is_late {
                let blame = meet(&late, Duration::from_secs(1)).unwrap_err();
                assert_eq!((blame.fault, &blame.culprits[..]), (Fault::TimedOut, &[1][..]), "{blame}");
            }
            // The next call works, also natively.
            assert_eq!(meet(&next, LONG).unwrap(), 3);
            assert_eq!(sum(&next, LONG).unwrap(), [0; 4000]);
            if !is_late {
                let blame = meet(&last, LONG).unwrap_err();
                assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Lost, &[1][..]), "{blame}");
                assert!(blame.to_string().contains("it has ended"), "{blame}");
            }
        });
    });
}

/// Stops a process, which MPI does not notice. The others notice it, and exit without `MPI_Finalize`. Then `mpirun`
/// kills the stopped process.
#[test]
fn a_process_that_is_stopped_is_lost_and_ended_with_the_job() {
    const TEST: &str = "a_process_that_is_stopped_is_lost_and_ended_with_the_job";
    if child::part().is_none() {
        let said = started(mpirun(TEST, 3, "rank"), false);
        let named = |line: &&str| line.starts_with("step 1: the connection to worker 1 (replica 1) was lost");
        assert_eq!(said.lines().filter(named).count(), 2, "{said}");
        assert!(said.contains("it has sent nothing for 1.0 s"), "{said}");
        let pid = said.split_once("stopped: ").unwrap().1.lines().next().unwrap();
        let deadline = Deadline::after(LONG);
        while lives(pid) {
            assert!(!deadline.has_passed(), "it was left behind: {said}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        return;
    }
    // After the first one exits, mpirun ends the other, which must have printed its error by then.
    let shutdown_timeout = Duration::from_secs(2);
    let settings = Settings { silence: Duration::from_secs(1), shutdown_timeout, ..Settings::default() };
    let ran = distribute_mpi::run(settings, |group| {
        let session = group.open("stopped", 1);
        meet(&session, LONG).unwrap();
        if group.world().worker() == 1 {
            println!("stopped: {}", std::process::id());
            signal("-STOP", std::process::id());
            // It is a moment until all of its threads are stopped.
            std::thread::park_timeout(LONG);
        }
        let watch = Stopwatch::start();
        let blame = sum(&session, LONG).unwrap_err();
        assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Lost, &[1][..]), "{blame}");
        assert!(watch.elapsed() < Duration::from_secs(10));
        println!("{blame}");
        Err::<(), Box<dyn std::error::Error>>(format!("{blame}").into())
    });
    assert!(ran.is_err());
    std::process::exit(1);
}

#[test]
fn where_a_process_is_killed_mpirun_ends_all() {
    const TEST: &str = "where_a_process_is_killed_mpirun_ends_all";
    if child::part().is_none() {
        let watch = Stopwatch::start();
        let said = started(mpirun(TEST, 3, "rank"), false);
        assert!(said.contains("signal 9"), "{said}");
        assert!(watch.elapsed() < LONG, "{said}");
        return;
    }
    run(|group| {
        let session = group.open("killed", 1);
        meet(&session, LONG).unwrap();
        if group.world().worker() == 1 {
            signal("-KILL", std::process::id());
        }
        let _ = meet(&session, Duration::MAX);
    });
}

#[test]
fn workers_have_equally_many_replicas() {
    on_ranks("workers_have_equally_many_replicas", &[3], || {
        let replicas = if std::env::var("OMPI_COMM_WORLD_RANK").unwrap() == "2" { 4 } else { 1 };
        let settings = Settings { replicas, ..Settings::default() };
        let error = distribute_mpi::run(settings, |_| Ok::<(), Error>(())).unwrap_err();
        let text = "worker 2 has 4 replicas, but worker 0 has 1: use the same number on all workers";
        assert_eq!(error.to_string(), text);
        let again = distribute_mpi::run(settings, |_| Ok::<(), Error>(())).unwrap_err();
        assert!(matches!(again, Error::AlreadyInitialized), "{again}");
    });
}

#[test]
fn a_process_that_does_not_join_is_not_waited_for_longer_than_asked() {
    const TEST: &str = "a_process_that_does_not_join_is_not_waited_for_longer_than_asked";
    if child::part().is_none() {
        let said = started(mpirun(TEST, 2, "rank"), false);
        assert!(said.contains("MPI has not connected all processes after 2 s"), "{said}");
        return;
    }
    if std::env::var("OMPI_COMM_WORLD_RANK").unwrap() == "1" {
        // Until mpirun ends it with the others.
        std::thread::park_timeout(LONG);
    }
    let settings = Settings { join: Duration::from_secs(2), ..Settings::default() };
    println!("{}", distribute_mpi::run(settings, |_| Ok::<(), Error>(())).unwrap_err());
    std::process::exit(1);
}

#[test]
fn a_process_alone_is_a_world_but_not_where_it_is_one_of_several() {
    const TEST: &str = "a_process_alone_is_a_world_but_not_where_it_is_one_of_several";
    match child::part().as_deref() {
        None => {
            started(child::command(TEST, "alone"), true);
            let mut several = child::command(TEST, "several");
            // As set by Hydra, which starts programs of MPICH.
            several.env("PMI_RANK", "1").env("PMI_SIZE", "2");
            started(several, true);
        }
        Some("alone") => run(|group| {
            let session = group.open("alone", 1);
            assert_eq!(meet(&session, LONG).unwrap(), 1);
            assert_eq!(sum(&session, LONG).unwrap(), [0; 4000]);
        }),
        Some(_) => {
            let error = distribute_mpi::run(Settings::default(), |_| Ok::<(), Error>(())).unwrap_err();
            assert!(matches!(error, Error::Alone { .. }), "{error}");
        }
    }
}
