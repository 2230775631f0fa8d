//! Workers that are threads, linked by sockets like processes. A lost worker returns an error and starts again.

use crate::recovery::program::{At, Place, Task, Trained, program};
use distribute::Error;
use distribute_testing::{Port, watched};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `program` on each worker, and returns the results. One worker is lost once, at the given point, and starts
/// again.
pub fn train<T: Send + 'static>(
    workers: usize,
    replicas: usize,
    fault: Option<(usize, Place)>,
    program: fn(&Task, &At) -> distribute::Result<T>,
) -> Vec<T> {
    train_while(workers, replicas, fault, program, |_| ())
}

/// Acts like [`train`], and calls `lost` before the lost worker starts again.
fn train_while<T: Send + 'static>(
    workers: usize,
    replicas: usize,
    fault: Option<(usize, Place)>,
    program: fn(&Task, &At) -> distribute::Result<T>,
    lost: fn(&Task),
) -> Vec<T> {
    let reserved = Port::reserve();
    let port = reserved.number();
    let happened = Arc::new(AtomicBool::new(false));
    let run = move |worker: usize| {
        let happened = happened.clone();
        let task = Task { replicas, ..Task::new(worker, workers, port) };
        let at: At = Arc::new(move |place: Place| {
            let now = fault == Some((worker, place)) && !happened.swap(true, Ordering::SeqCst);
            if now { Err(Error::other("killed")) } else { Ok(()) }
        });
        loop {
            match program(&task, &at) {
                // As `distribute launch --max-restarts` does.
                Err(error)
                    if error.to_string().contains("killed") && fault.is_some_and(|(of, _)| of == worker) =>
                {
                    lost(&task);
                }
                ended => return ended.unwrap_or_else(|error| panic!("worker {worker}: {error}")),
            }
        }
    };
    let run = &run;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|worker| scope.spawn(move || run(worker))).collect();
        all.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

// INV-42
fn same_weights(workers: usize, replicas: usize) {
    let undisturbed = train(workers, replicas, None, program);
    for place in Place::IN_TRAINING {
        for worker in 0..workers {
            for trained in train(workers, replicas, Some((worker, place)), program) {
                let expected = Trained { generation: 2, ..undisturbed[0].clone() };
                assert_eq!(trained, expected, "{place:?} of worker {worker}");
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

// INV-34, INV-42
#[test]
fn a_worker_of_another_job_does_not_get_the_place_of_one_that_was_lost() {
    fn stranger(task: &Task) {
        let nowhere: At = Arc::new(|_| Ok(()));
        let task = Task { job: Some("letters".into()), ..task.clone() };
        let error = program(&task, &nowhere).unwrap_err().to_string();
        assert!(error.contains("another job than \"letters\" is at this address"), "{error}");
    }
    watched(|| {
        let undisturbed = train(2, 1, None, program);
        for trained in train_while(2, 1, Some((1, Place::InStep)), program, stranger) {
            assert_eq!(trained, Trained { generation: 2, ..undisturbed[0].clone() });
        }
    });
}
