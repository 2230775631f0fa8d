//! Tests: per-replica batches that are prepared early or on request.

use super::*;
use crate::distribution::WorkerPass;
use distribute_testing::watched;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::ThreadId;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

fn with(data: &Dataset<HostTensor>, layout: Layout, prefetch: usize) -> Distribution<HostTensor> {
    Distribution::new(data, layout, DistributeOptions { prefetch, ..Default::default() }).unwrap()
}

fn numbers(piece: Tree<Leaf>) -> Vec<i64> {
    HostTensor::from_tree(piece).unwrap().to_vec().unwrap()
}

/// Prepends the index of the replica to the ids of a batch.
fn marked(replica: usize, piece: Tree<Leaf>) -> Result<Tree<Leaf>, Cause> {
    let ids = numbers(piece);
    let marks = std::iter::once(replica as i64).chain(ids);
    Ok(HostTensor::vector(marks.collect()).into_tree())
}

/// Returns the ids of the rest of a pass, as `[step][replica]`.
fn rest(mut pass: WorkerPass<HostTensor>) -> Vec<Vec<Vec<i64>>> {
    let step = || pass.step().unwrap();
    let ids = |piece: HostTensor| piece.to_vec().unwrap();
    std::iter::from_fn(step).map(|step| step.into_iter().map(ids).collect()).collect()
}

/// Returns a pass over `range(20).batch(4)` for two replicas, and a channel that receives the replica, the first id and
/// the thread of each prepared batch.
fn told(prefetch: usize) -> (WorkerPass<HostTensor>, Receiver<(usize, i64, ThreadId)>) {
    let (sender, heard) = channel();
    let plan = with(&Dataset::range(20).batch(4), Layout::one_worker(2), prefetch);
    let plan = plan.prepared(true, move |replica, piece| {
        let first = numbers(piece.clone()).first().copied().ok_or("no rows")?;
        sender.send((replica, first, std::thread::current().id()))?;
        Ok(piece)
    });
    (plan.worker(0, 0).unwrap(), heard)
}

// INV-3
#[test]
fn a_step_is_prepared_before_it_is_asked_for_and_on_another_thread() {
    watched(|| {
        for ahead in [1, 2] {
            let (mut pass, heard) = told(ahead);
            let mut called = 0;
            for taken in 1..=3 {
                assert!(pass.step().unwrap().is_some());
                // The later steps are not requested.
                while called < (taken + ahead) * 2 && called < 10 {
                    let (replica, first, thread) = heard.recv_timeout(LONG).expect("nothing is prepared");
                    assert_eq!((replica, first), (called % 2, 2 * called as i64));
                    assert_ne!(thread, std::thread::current().id());
                    called += 1;
                }
                assert!(heard.try_recv().is_err(), "further ahead than {ahead} steps");
                assert_eq!(pass.position().steps, taken as u64);
            }
            // The thread exits with the pass: its end of the channel is dropped.
            drop(pass);
            while heard.recv_timeout(LONG).is_ok() {}
            assert_eq!(heard.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        }
    });
}

#[test]
fn cheap_operations_run_here_if_reading_is_cheap() {
    let (sender, heard) = channel();
    let plan = with(&Dataset::range(20).batch(4), Layout::one_worker(2), 1);
    let plan = plan.prepared(false, move |_, piece| {
        sender.send(std::thread::current().id())?;
        Ok(piece)
    });
    assert_eq!(rest(plan.worker(0, 0).unwrap()).len(), 5);
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [std::thread::current().id(); 10]);
}

#[test]
fn without_prefetching_a_step_is_prepared_on_request() {
    let (mut pass, heard) = told(0);
    assert!(heard.try_recv().is_err());
    for step in 0..2 {
        assert!(pass.step().unwrap().is_some());
        let called: Vec<_> = heard.try_iter().collect();
        let here = std::thread::current().id();
        assert_eq!(called, [(0, 4 * step, here), (1, 4 * step + 2, here)]);
    }
}

// INV-3
#[test]
fn a_failure_ends_the_pass_in_its_step_and_is_named() {
    watched(|| {
        for prefetch in [0, 1, 3] {
            for (panics, why) in
                [(false, "no memory"), (true, "the function given to prepare panicked at element 1: no luck")]
            {
                let plan = with(&Dataset::range(20).batch(4), Layout::one_worker(2), prefetch);
                let plan =
                    plan.prepared(true, move |replica, piece| match (replica, numbers(piece.clone())[0]) {
                        (1, 10) if panics => panic!("no luck"),
                        (1, 10) => Err("no memory".into()),
                        _ => Ok(piece),
                    });
                for from in [0, 1] {
                    let position = Position { steps: from, ..plan.beginning(0) };
                    let mut pass = plan.resume(0, &position).unwrap();
                    for _ in from..2 {
                        assert!(pass.step().unwrap().is_some());
                    }
                    let error = pass.step().unwrap_err();
                    assert!(matches!(error, Error::Piece { step: 2, replica: 1, .. }), "{error}");
                    let text = format!("step 2: the batch of local replica 1 cannot be prepared: {why}");
                    assert_eq!(error.to_string(), text);
                    assert_eq!(pass.position().steps, 2);
                    assert!(pass.step().unwrap().is_none());
                }
            }
        }
    });
}

#[test]
fn a_pass_resumes_after_the_last_step_taken_though_more_were_prefetched() {
    watched(|| {
        let data = Dataset::range(11).batch(4);
        for prefetch in [0, 1, 4] {
            let two = with(&data, Layout::one_worker(2), prefetch).prepared(true, marked);
            let mut pass = two.worker(0, 0).unwrap();
            let first: Vec<_> = pass.step().unwrap().unwrap();
            assert_eq!(
                first.iter().map(|piece| piece.to_vec::<i64>().unwrap()).collect::<Vec<_>>(),
                [[0, 0, 1], [1, 2, 3]]
            );
            let position = pass.position();
            let left = vec![vec![vec![0, 4, 5], vec![1, 6, 7]], vec![vec![0, 8, 9], vec![1, 10]]];
            assert_eq!(rest(two.resume(0, &position).unwrap()), left);
            assert_eq!(rest(pass), left);
            // On another layout, the remaining batches of the old workers are prepared once, for the new
            // replicas.
            let others = two.over(Layout { workers: 2, replicas: 3 }).unwrap();
            assert_eq!(
                rest(others.resume(0, &position).unwrap()),
                [[vec![0, 4], vec![1, 5], vec![2, 6]], [vec![0, 8], vec![1, 9], vec![2, 10]]]
            );
            assert_eq!(
                rest(others.resume(1, &position).unwrap()),
                [[vec![0, 7], vec![1], vec![2]], [vec![0], vec![1], vec![2]]]
            );
            let failing = others.prepared(true, |replica, piece| match &numbers(piece.clone())[..] {
                [9] => Err(format!("for {replica}").into()),
                _ => Ok(piece),
            });
            let mut pass = failing.resume(0, &position).unwrap();
            assert!(pass.step().unwrap().is_some());
            let error = pass.step().unwrap_err();
            assert!(matches!(error, Error::Piece { step: 2, replica: 1, .. }), "{error}");
        }
    });
}

#[test]
fn fn_2_batches_of_a_function_are_prefetched_including_the_empty_ones_at_its_end() {
    watched(|| {
        for prefetch in [0, 1, 2] {
            let options = DistributeOptions { prefetch, ..Default::default() };
            let made = |per_replica| {
                let make = |context: InputContext| {
                    let n = if context.input_pipeline_id == 0 { 3 } else { 1 };
                    Ok(Dataset::range(n).batch(1))
                };
                let plan =
                    Distribution::from_function(Layout::one_worker(2), per_replica, options.clone(), make);
                rest(plan.unwrap().prepared(true, marked).worker(0, 0).unwrap())
            };
            assert_eq!(made(false), [[vec![0, 0], vec![1, 1]], [vec![0, 2], vec![1]]]);
            assert_eq!(made(true), [[vec![0, 0], vec![1, 0]], [vec![0, 1], vec![1]], [vec![0, 2], vec![1]]]);
        }
    });
}

/// Returns batches of one row: three for worker 0, one for each other worker. Batches without rows cannot be
/// prepared.
fn without_room_for_empty(layout: Layout, prefetch: usize) -> Distribution<HostTensor> {
    let make = |context: InputContext| {
        let n = if context.input_pipeline_id == 0 { 3 } else { 1 };
        Ok(Dataset::range(n).batch(1))
    };
    let options = DistributeOptions { prefetch, ..Default::default() };
    let plan = Distribution::from_function(layout, false, options, make).unwrap();
    plan.prepared(true, |_, piece| match piece.rows()? {
        0 => Err("no memory".into()),
        _ => Ok(piece),
    })
}

// ITER-2, ITER-4
#[test]
fn a_failure_for_an_empty_batch_is_detected_before_the_workers_agree_on_the_step() {
    watched(|| {
        for prefetch in [0, 1] {
            let plan = without_room_for_empty(Layout { workers: 2, replicas: 2 }, prefetch);
            let mut passes = [0, 1].map(|worker| plan.worker(worker, 0).unwrap());
            // Worker 1 has one row for two replicas.
            assert_eq!(passes[0].prepare().unwrap().present, 2);
            let error = passes[1].prepare().unwrap_err();
            assert!(matches!(error, Error::Piece { step: 0, replica: 1, .. }), "{error}");
            assert_eq!(
                error.to_string(),
                "step 0: the batch of local replica 1 cannot be prepared: no memory"
            );
            assert!(passes[1].step().unwrap().is_none(), "the pass is over");

            // A worker whose data has ended, while another continues.
            let plan = without_room_for_empty(Layout { workers: 2, replicas: 1 }, prefetch);
            let mut pass = plan.worker(1, 0).unwrap();
            assert!(pass.step().unwrap().is_some());
            let error = pass.prepare().unwrap_err();
            assert!(matches!(error, Error::Piece { step: 1, replica: 0, .. }), "{error}");
        }
    });
}

#[test]
fn a_single_worker_prefetches_nothing_at_the_end() {
    watched(|| {
        for prefetch in [0, 1] {
            let mut pass = without_room_for_empty(Layout::one_worker(1), prefetch).worker(0, 0).unwrap();
            for _ in 0..3 {
                assert!(pass.step().unwrap().is_some());
            }
            assert!(pass.step().unwrap().is_none());
        }
    });
}
