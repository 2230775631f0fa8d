//! Each collective, on worlds of several workers and replicas, against one process that has all replicas.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distribute_cluster::{Fingerprint, Operation, Standing};
use distribute_collective::group::{Calling, Session, memory};
use distribute_tensor::fold::Alone;
use distribute_tensor::pack::reduce_packed;
use distribute_tensor::{DType, HostTensor, IndexedSlices, Leaf, Packing, ReduceOp, wire};
use distribute_testing::watched;
use std::panic::Location;
use std::time::Duration;

/// Numbers whose sum depends on the order in which they are added.
fn numbers(replica: usize, len: usize) -> HostTensor {
    let mut state = (replica as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f64 / 8388608.0 - 1.0) * if state & 64 == 0 { 1e-3 } else { 1e3 }
    };
    HostTensor::vector((0..len).map(|_| next()).collect())
}

fn rows(replica: usize, len: usize, dense_shape: bool) -> Leaf {
    let count = replica % 3;
    let values = numbers(replica, count * len).cast(DType::F32).unwrap().reshape([count, len]).unwrap();
    let indices = HostTensor::vector((0..count).map(|row| ((row * 5 + replica) % 4) as i64).collect());
    IndexedSlices::new(values, indices, dense_shape.then(|| vec![4, len])).unwrap().into()
}

/// The leaves of one replica: every dtype, odd lengths, nothing, rows, and rows on some replicas only.
fn leaves(replica: usize, len: usize) -> Vec<Leaf> {
    let summed = DType::ALL.into_iter().filter(|dtype| dtype.mean().is_some());
    let mut all: Vec<Leaf> = summed.map(|dtype| numbers(replica, len).cast(dtype).unwrap().into()).collect();
    all.push(rows(replica, len, false));
    all.push(match replica % 2 {
        0 => rows(replica, len, true),
        _ => numbers(replica, 4 * len).cast(DType::F32).unwrap().reshape([4, len]).unwrap().into(),
    });
    all
}

fn calling<'a>(session: &'a Session, at: &'static Location<'static>) -> Calling<'a> {
    let call = Fingerprint::new(Operation::AllReduce, "conformance", at);
    let standing = |replica| Standing::waiting(replica, call.clone());
    let standings = session.world().local_replicas().map(standing).collect();
    Calling::new(session, standings, Duration::from_secs(30))
}

/// Runs `body` for each worker of a world over memory.
#[track_caller]
fn on_workers<T: Send + 'static>(
    workers: usize,
    replicas: usize,
    body: impl Fn(Calling<'_>, &[&[Leaf]]) -> T + Send + Sync + 'static,
    of: impl Fn(usize) -> Vec<Leaf> + Send + Sync + 'static,
) -> Vec<T> {
    let at = Location::caller();
    watched(move || {
        let groups = memory::groups(workers, replicas).unwrap();
        std::thread::scope(|scope| {
            let (body, of) = (&body, &of);
            let run = move |group: distribute_collective::group::Group| {
                let session = group.open("conformance", 1);
                let local: Vec<Vec<Leaf>> = group.world().local_replicas().map(of).collect();
                body(calling(&session, at), &local.iter().map(Vec::as_slice).collect::<Vec<_>>())
            };
            let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || run(group))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    })
}

fn bytes(leaves: &[Leaf]) -> Vec<u8> {
    wire::encode(leaves).unwrap()
}

fn check_all_reduce(workers: usize, replicas: usize, len: usize) {
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        for packing in [Packing::APART, Packing::Bytes(1000)] {
            let all: Vec<Vec<Leaf>> = (0..workers * replicas).map(|replica| leaves(replica, len)).collect();
            let all: Vec<&[Leaf]> = all.iter().map(Vec::as_slice).collect();
            let expected = bytes(&reduce_packed(op, &all, packing, &Alone).unwrap());
            let reduced = on_workers(
                workers,
                replicas,
                move |calling, local| calling.all_reduce(op, packing, local, &Alone).unwrap().leaves,
                move |replica| leaves(replica, len),
            );
            for (worker, reduced) in reduced.iter().enumerate() {
                assert!(
                    bytes(reduced) == expected,
                    "{op} of {len} on worker {worker} of {workers} × {replicas}"
                );
            }
        }
    }
}

// INV-7, INV-27
#[test]
fn all_reduce_has_the_bits_of_one_process_with_all_replicas() {
    for workers in 1..=8 {
        for replicas in 1..=3 {
            for len in [0, 1, 7, 65] {
                check_all_reduce(workers, replicas, len);
            }
        }
    }
}

#[test]
fn everybody_gets_the_leaves_of_worker_0() {
    for workers in 1..=4 {
        let all = on_workers(
            workers,
            2,
            |calling, local| calling.of_first(local[0]).unwrap(),
            |replica| leaves(replica, 7),
        );
        assert!(all.iter().all(|of_first| bytes(of_first) == bytes(&leaves(0, 7))));
    }
}

// INV-7, INV-27
#[test]
fn large_leaves_are_folded_by_ranges_to_the_same_bits() {
    for (workers, replicas) in [(2, 1), (2, 2), (3, 1), (3, 2), (2, 3), (5, 4), (8, 1)] {
        check_all_reduce(workers, replicas, 3001);
    }
}

#[test]
fn all_gather_gives_every_worker_the_leaves_of_all_replicas() {
    for (workers, replicas) in [(1, 2), (2, 1), (2, 3), (5, 2), (8, 1)] {
        for len in [0, 3, 3001] {
            let of = move |replica: usize| {
                let mut all = leaves(replica, len + replica);
                all.push(HostTensor::vector(vec![replica.is_multiple_of(2)]).into());
                all.push(HostTensor::vector(vec![format!("replica {replica}").into_bytes()]).into());
                all
            };
            let gathered =
                on_workers(workers, replicas, |calling, local| calling.all_gather(local).unwrap().0, of);
            for all in gathered {
                assert_eq!(all.len(), workers * replicas);
                for (replica, leaves) in all.iter().enumerate() {
                    assert!(bytes(leaves) == bytes(&of(replica)), "replica {replica}");
                }
            }
        }
    }
}
