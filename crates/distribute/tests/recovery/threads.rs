//! The workers are threads, linked by sockets as processes are; one that is lost ends with an error, and begins anew.

use crate::program::{Place, Task, program};
use distribute::Error;
use distribute_testing::watched;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

/// What each worker's training comes to, where one is lost at a place.
fn train(workers: usize, replicas: usize, fault: Option<(usize, Place)>) -> Vec<(String, u64)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let happened = &AtomicBool::new(false);
    let run = move |worker: usize| {
        let lost = |place: Place| {
            let now = fault == Some((worker, place)) && !happened.swap(true, Ordering::SeqCst);
            if now { Err(Error::other("killed")) } else { Ok(()) }
        };
        loop {
            match program(Task { worker, workers, replicas, port }, lost) {
                // As `distribute launch --max-restarts` does.
                Err(error)
                    if error.to_string().contains("killed") && fault.is_some_and(|(of, _)| of == worker) => {}
                ended => return ended.unwrap_or_else(|error| panic!("worker {worker}: {error}")),
            }
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|worker| scope.spawn(move || run(worker))).collect();
        all.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

// INV-42
fn same_weights(workers: usize, replicas: usize) {
    let undisturbed = train(workers, replicas, None);
    for place in Place::IN_TRAINING {
        for worker in 0..workers {
            for (sha256, generation) in train(workers, replicas, Some((worker, place))) {
                assert_eq!(sha256, undisturbed[0].0, "{place:?} of worker {worker}");
                assert_eq!(generation, 2, "{place:?} of worker {worker}");
            }
        }
    }
}

#[test]
fn two_workers() {
    watched(|| same_weights(2, 1));
}

#[test]
fn three_workers() {
    watched(|| same_weights(3, 1));
}

#[test]
fn two_workers_of_two_replicas() {
    watched(|| same_weights(2, 2));
}
