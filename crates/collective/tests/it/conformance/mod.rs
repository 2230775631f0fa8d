//! Checks each collective, over every transport and on worlds of every size, against one thread that has the values of
//! all replicas.

mod leaves;
mod orders;
mod tree;

use bytes::Bytes;
use distribute_cluster::{Fingerprint, Operation, World};
use distribute_collective::group::early::early_range;
use distribute_collective::group::{GroupCall, Links, SumOptions, local};
use distribute_collective::threads::{Member, Team};
use distribute_collective::{all_gather, all_reduce};
use distribute_tensor::fold::Alone;
use distribute_tensor::kernel::fold_scaled;
use distribute_tensor::{HostTensor, Leaf, Packing, ReduceOp, wire};
use distribute_testing::watched;
use half::{bf16, f16};
use leaves::{of_every_dtype, summed};
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns the worlds for calls that are made once for all replicas of a worker.
fn several_workers() -> impl Iterator<Item = (usize, usize)> {
    worlds().filter(|(workers, replicas)| *workers > 1 && (*replicas == 1 || *workers < 4))
}

const PATIENCE: Duration = Duration::from_secs(30);

/// Returns worlds as numbers of workers and of replicas per worker: one worker with 1 to 8 replicas, 2 to 8 workers
/// with 1 to 3 replicas each, and 3 workers with 4.
fn worlds() -> impl Iterator<Item = (usize, usize)> {
    let threads = (1..=8).map(|replicas| (1, replicas));
    threads
        .chain((2..=8).flat_map(|workers| (1..=3).map(move |replicas| (workers, replicas))))
        .chain([(3, 4)])
}

/// Returns the transport of a world: the one that `DISTRIBUTE_TEST_LINKS` names (`memory`, `tcp`, `tls` or `shared`)
/// or, without that variable, each one in turn.
fn links((workers, replicas): (usize, usize)) -> Links {
    match std::env::var("DISTRIBUTE_TEST_LINKS").as_deref() {
        Ok("memory") => Links::Memory,
        Ok("tcp") => Links::Tcp,
        Ok("tls") => Links::Tls,
        Ok("shared") => Links::Shared,
        _ => [Links::Memory, Links::Tcp, Links::Tls, Links::Shared][(workers + replicas) % 4],
    }
}

fn call(operation: Operation, detail: String) -> Fingerprint {
    Fingerprint::new(operation, detail, Location::caller())
}

/// Runs `body` on each replica of a world in which each worker is a team, and returns the results by id.
fn on_replicas<T: Send + 'static>(
    (workers, replicas): (usize, usize),
    body: impl Fn(&Member) -> T + Send + Sync + 'static,
) -> Vec<T> {
    watched(move || {
        let groups = local::groups(links((workers, replicas)), workers, replicas).unwrap();
        let body = &body;
        std::thread::scope(|scope| {
            let run = move |group: distribute_collective::group::Group| {
                let results: Vec<_> = (0..replicas).map(|_| Mutex::new(None)).collect();
                let session = (workers > 1).then(|| Arc::new(group.open("conformance", 1)));
                Arc::new(Team::new(replicas).unwrap()).run_with_session(1, PATIENCE, session, &|member| {
                    *results[member.rank()].lock().unwrap() = Some(body(&member));
                    true
                });
                results.into_iter().map(|result| result.into_inner().unwrap().unwrap()).collect::<Vec<T>>()
            };
            let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || run(group))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    })
}

/// Runs `body` once on each worker, like calls between steps, and returns the results by worker.
fn on_workers<T: Send + 'static>(
    (workers, replicas): (usize, usize),
    body: impl Fn(GroupCall<'_>, std::ops::Range<usize>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    on_replicas((workers, replicas), move |member| {
        let made = member.reduce_on_leader(call(Operation::MergeCall, String::new()), (), |_| {
            let call = |_| call(Operation::Reduce, String::new());
            let world = member.session().map(|session| session.world())?;
            Some(Mutex::new(member.with_group(call, |calling| body(calling, world.local_replicas()))))
        });
        made.unwrap().as_ref().as_ref().and_then(|made| made.lock().unwrap().take())
    })
    .into_iter()
    .flatten()
    .collect()
}

fn bytes(leaves: &[Leaf]) -> Vec<u8> {
    wire::encode(leaves).unwrap()
}

fn bytes_of(tensor: HostTensor) -> Vec<u8> {
    bytes(&[tensor.into()])
}

/// Checks that the result of each replica is bit-identical to the fold of all contributions.
fn check_sum(world: (usize, usize), op: ReduceOp, len: usize, got: &[Leaf]) {
    let brought: Vec<_> = (0..world.0 * world.1).map(|replica| summed(replica, len)).collect();
    assert_eq!(got.len(), brought[0].len());
    for (leaf, got) in got.iter().enumerate() {
        let all: Vec<Leaf> = brought.iter().map(|leaves| leaves[leaf].clone()).collect();
        let what = format!("{op} of leaf {leaf}, {}, over {world:?}", all[0].describe());
        match (tree::indices(&all), got) {
            (Some(indices), Leaf::Slices(rows)) => assert_eq!(rows.to_rows().unwrap(), indices, "{what}"),
            (None, Leaf::Host(_)) => {}
            _ => panic!("{what} is {}", got.describe()),
        }
        assert!(bytes_of(tree::dense(got)) == bytes_of(tree::fold(op, &all)), "{what}");
    }
}

fn reductions() -> impl Iterator<Item = (ReduceOp, Packing)> {
    let packings = [Packing::APART, Packing::Bytes(1000), Packing::Count(3)];
    [ReduceOp::Sum, ReduceOp::Mean].into_iter().flat_map(move |op| packings.map(|packing| (op, packing)))
}

/// Checks all reductions of leaves of these lengths, on each replica.
fn check_all_reduce(world: (usize, usize), lens: &'static [usize]) {
    let all = on_replicas(world, move |member| {
        let of = |len: usize, (op, packing)| {
            let call = call(Operation::AllReduce, format!("{op} {packing:?} {len}"));
            all_reduce(member, call, op, packing, summed(member.replica(), len)).unwrap().leaves
        };
        lens.iter().map(|len| reductions().map(|by| of(*len, by)).collect::<Vec<_>>()).collect::<Vec<_>>()
    });
    for (at, len) in lens.iter().enumerate() {
        for (by, (op, packing)) in reductions().enumerate() {
            check_sum(world, op, *len, &all[0][at][by]);
            let first = bytes(&all[0][at][by]);
            for (replica, got) in all.iter().enumerate() {
                assert!(bytes(&got[at][by]) == first, "{op}, {packing:?} on replica {replica} of {world:?}");
            }
        }
    }
}

// INV-7, INV-27
#[test]
fn all_reduce_is_the_fold_by_the_tree_on_every_replica() {
    worlds().for_each(|world| check_all_reduce(world, &[0, 1, 7, 65]));
}

// INV-7, INV-27
#[test]
fn large_leaves_are_partitioned_with_the_same_bits() {
    // The leaves of a worker take more than 64 KiB in total, and so do those of one dtype.
    for world in [(1, 5), (2, 1), (2, 2), (3, 1), (2, 3), (5, 1), (8, 1)] {
        check_all_reduce(world, &[1001]);
    }
    check_all_reduce((1, 3), &[33_001]);
}

// INV-7, INV-27
#[test]
fn halves_are_added_up_as_f32_and_rounded_once_in_every_path() {
    // In bf16, one number is large compared with the sum of the others. In f16, the sum of two numbers overflows.
    let of = |replica: usize, len: usize| -> Vec<Leaf> {
        let (small, large) = (if replica == 0 { 256. } else { 1. }, 40_000.);
        vec![
            HostTensor::vector(vec![bf16::from_f32(small); len]).into(),
            HostTensor::vector(vec![f16::from_f32(large); len]).into(),
        ]
    };
    for world in [(1, 3), (1, 8), (2, 1), (3, 1), (2, 2), (2, 3), (3, 2), (2, 4), (3, 4)] {
        let replicas = world.0 * world.1;
        // For the last length, each worker folds a range.
        for len in [1, 70, 20_000] {
            let all = on_replicas(world, move |member| {
                reductions()
                    .map(|(op, packing)| {
                        let call = call(Operation::AllReduce, format!("{op} {packing:?}"));
                        all_reduce(member, call, op, packing, of(member.replica(), len)).unwrap().leaves
                    })
                    .collect::<Vec<_>>()
            });
            for ((op, packing), got) in reductions().zip(&all[0]) {
                let sum = 255. + replicas as f32;
                let (expected, leaf) = match op {
                    ReduceOp::Sum => (HostTensor::vector(vec![bf16::from_f32(sum); len]), 0),
                    ReduceOp::Mean => (HostTensor::vector(vec![f16::from_f32(40_000.); len]), 1),
                };
                assert!(
                    got[leaf].to_host().unwrap() == expected,
                    "{op}, {packing:?} over {world:?}, {len} elements: {}",
                    got[leaf].narrow(0, 0, 1).unwrap()
                );
            }
        }
    }
}

#[test]
fn all_gather_concatenates_the_leaves_of_all_replicas_in_the_order_of_ids() {
    for world in worlds() {
        let lens = [0, 1, 65, 1001];
        let all = on_replicas(world, move |member| {
            let of = |len: usize| {
                let call = call(Operation::AllGather, format!("{len}"));
                all_gather(member, call, 0, of_every_dtype(member.replica(), len)).unwrap()
            };
            lens.map(|len| {
                let (gathered, offsets) = of(len);
                (gathered.leaves, offsets)
            })
        });
        for (at, len) in lens.into_iter().enumerate() {
            let brought: Vec<_> =
                (0..world.0 * world.1).map(|replica| of_every_dtype(replica, len)).collect();
            let column = |leaf: usize| brought.iter().map(|leaves| leaves[leaf].clone()).collect::<Vec<_>>();
            let expected: Vec<Leaf> =
                (0..brought[0].len()).map(|leaf| Leaf::concat(&column(leaf), 0).unwrap()).collect();
            for (replica, got) in all.iter().enumerate() {
                let before: usize = brought[..replica].iter().map(|leaves| leaves[0].dims()[0]).sum();
                assert!(bytes(&got[at].0) == bytes(&expected), "{len} on replica {replica} of {world:?}");
                assert_eq!(got[at].1, vec![before; expected.len()]);
            }
        }
    }
}

#[test]
fn sendable_values_are_exchanged_in_the_order_of_ids() {
    for world in worlds() {
        let of = |id: usize| (!id.is_multiple_of(3)).then(|| vec![(id as u64, id); id]);
        let all = on_replicas(world, move |member| {
            let shared = member.all_gather(call(Operation::Minimize, String::new()), of(member.replica()));
            shared.unwrap().iter().map(|offer| Option::clone(offer)).collect::<Vec<_>>()
        });
        let expected: Vec<_> = (0..world.0 * world.1).map(of).collect();
        assert!(all.iter().all(|got| *got == expected), "{world:?}");
    }
}

// Calls that code makes once for all replicas of a worker.

#[test]
fn a_worker_reduces_for_all_of_its_replicas() {
    for world in several_workers() {
        for len in [0, 7, 1001].into_iter().filter(|len| *len < 1000 || world.1 == 1) {
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                let reduced = on_workers(world, move |calling, replicas| {
                    let local: Vec<Vec<Leaf>> = replicas.map(|replica| summed(replica, len)).collect();
                    let local: Vec<&[Leaf]> = local.iter().map(Vec::as_slice).collect();
                    calling.all_reduce(op, Packing::APART, &local, &Alone).unwrap().leaves
                });
                check_sum(world, op, len, &reduced[0]);
                assert_eq!(reduced.len(), world.0);
                assert!(
                    reduced.iter().all(|got| bytes(got) == bytes(&reduced[0])),
                    "{op} of {len}: {world:?}"
                );
            }
        }
    }
}

#[test]
fn a_worker_gathers_for_all_of_its_replicas() {
    for world in several_workers() {
        for len in [3, 1001] {
            // Rows too, which are not joined here.
            let of = move |replica: usize| [of_every_dtype(replica, len), summed(replica, len)].concat();
            let gathered = on_workers(world, move |calling, replicas| {
                let local: Vec<Vec<Leaf>> = replicas.map(of).collect();
                calling.all_gather(&local.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap().0
            });
            for all in gathered {
                assert_eq!(all.len(), world.0 * world.1);
                for (replica, leaves) in all.iter().enumerate() {
                    assert!(bytes(leaves) == bytes(&of(replica)), "replica {replica} of {world:?}");
                }
            }
        }
    }
}

#[test]
fn all_members_get_the_leaves_and_the_records_of_worker_0() {
    for world in several_workers() {
        for len in [0, 7, 1001] {
            let of = move |replica: usize| [of_every_dtype(replica, len), summed(replica, len)].concat();
            let all =
                on_workers(world, move |calling, replicas| calling.broadcast(&of(replicas.start)).unwrap());
            assert!(all.iter().all(|of_first| bytes(of_first) == bytes(&of(0))), "{world:?}");
        }
        let records = on_workers(world, |mut calling, _| {
            let worker = calling.world().worker();
            calling.all_gather_bytes(Bytes::from(vec![worker as u8; 1000 * worker])).unwrap()
        });
        for all in records {
            assert!(
                all.iter().enumerate().all(|(worker, record)| *record == vec![worker as u8; 1000 * worker])
            );
        }
    }
}

/// Returns the numbers of a replica's vector, whose sum depends on the order in which they are added.
fn vector(replica: usize, len: usize) -> Vec<f32> {
    (0..len)
        .map(|at| ((replica * 7 + at * 13) % 97) as f32 * 10f32.powi((replica + at) as i32 % 7 - 3))
        .collect()
}

// INV-7
#[test]
fn vectors_have_the_sums_of_the_tree_completely_and_by_ranges() {
    for world in several_workers() {
        let count = world.0 * world.1;
        for len in [0, 1, 63, 1001, 40_000] {
            let weights: Vec<f32> = (0..count).map(|replica| 1. / (replica + 1) as f32).collect();
            let all: Vec<_> = (0..count).map(|replica| vector(replica, len)).collect();
            let mut expected = vec![0f32; len];
            fold_scaled(&all.iter().map(Vec::as_slice).collect::<Vec<_>>(), &weights, &mut expected);
            let expected: Vec<u8> = expected.into_iter().flat_map(f32::to_ne_bytes).collect();
            let whole: Vec<Vec<u8>> =
                all.iter().map(|v| v.iter().flat_map(|x| x.to_ne_bytes()).collect()).collect();
            let got = on_workers(world, move |mut calling, replicas| {
                let mine: Vec<_> = replicas
                    .map(|replica| {
                        let mut buffer = calling.buffers().take(4 * len);
                        buffer.bytes_mut().copy_from_slice(&whole[replica]);
                        buffer.freeze()
                    })
                    .collect();
                let sums =
                    calling.all_reduce_vectors(&mine, &weights, &SumOptions::default()).unwrap().concat();
                let exchanged =
                    calling.all_gather_sized("vectors", mine[0].clone(), |_| mine[0].len()).unwrap();
                let of_first = |(worker, got): (usize, &Bytes)| *got == whole[worker * world.1];
                (sums, exchanged.iter().enumerate().all(of_first))
            });
            for (sums, exchanged) in got {
                assert!(sums == expected && exchanged, "{len} numbers over {world:?}");
            }
        }
    }
}

#[test]
fn vectors_of_another_length_are_refused_by_name() {
    let errors = on_workers((3, 1), |mut calling, replicas| {
        let mine = Bytes::from(vec![0; if replicas.start == 1 { 8 } else { 4 }]);
        calling.all_gather_sized("vectors", mine.clone(), |_| mine.len()).unwrap_err().to_string()
    });
    assert!(errors[0].contains("8 bytes from worker 1, but 4 were expected"), "{errors:?}");
    assert!(errors[2].contains("8 bytes from worker 1"), "{errors:?}");
    assert!(errors[1].contains("4 bytes from worker 0, but 8 were expected"), "{errors:?}");
}

/// Returns the bytes of a vector on the wire.
fn as_bytes(vector: Vec<f32>) -> Bytes {
    vector.into_iter().flat_map(f32::to_ne_bytes).collect()
}

// INV-35
#[test]
fn early_sends_are_available_when_all_have_agreed_on_the_call() {
    const LENGTHS: [usize; 4] = [1001, 0, 40_000, 129];
    for workers in 2..=5 {
        let brought = |replica, step| LENGTHS.map(|len| as_bytes(vector(replica + 10 * step, len)));
        let got = on_replicas((workers, 1), move |member| {
            let session = member.session().unwrap().clone();
            let step = |step| {
                let (ahead, mine) = (session.early_send(), brought(member.replica(), step));
                for part in [2, 0, 3, 1] {
                    ahead.send_near(part, &mine[part]);
                    ahead.send_far(part, &mine[part]);
                }
                let together = member.all_gather_with_group(
                    call(Operation::Minimize, String::new()),
                    (),
                    |_, mut calling| {
                        calling.all_gather_bytes(Bytes::new())?;
                        // In step 1, the early data is not received, and is dropped.
                        if step == 1 {
                            Ok(Vec::new())
                        } else {
                            calling.receive_early_ranges(ahead.call(), &mine, |_| 1)
                        }
                    },
                );
                together.unwrap().1.unwrap().to_vec()
            };
            (0..4).map(step).collect::<Vec<_>>()
        });
        for (worker, steps) in got.into_iter().enumerate() {
            let world = World::new(workers, worker, 1).unwrap();
            for (step, got) in steps.into_iter().enumerate().filter(|(step, _)| *step != 1) {
                for (from, got) in got.into_iter().enumerate() {
                    let part = |all: Bytes| all.slice(early_range(world, worker, all.len()));
                    assert!(
                        got == brought(from, step).map(part),
                        "{from} to {worker} of {workers} in {step}"
                    );
                }
            }
        }
    }
}

#[test]
fn missing_or_mismatched_early_sends_are_refused_by_name() {
    let errors = on_replicas((2, 1), |member| {
        let (ahead, mine) = (member.session().unwrap().early_send(), as_bytes(vector(0, 100)));
        if member.replica() == 0 {
            ahead.send_far(0, &mine.slice(..396));
            ahead.send_near(0, &mine.slice(..396));
        }
        let together =
            member.all_gather_with_group(call(Operation::Minimize, String::new()), (), |_, mut calling| {
                calling.all_gather_bytes(Bytes::new())?;
                calling.receive_early_ranges(ahead.call(), std::slice::from_ref(&mine), |_| 1)
            });
        together.unwrap_err().to_string()
    });
    assert!(errors[0].contains("0 bytes from worker 1, but 400 were expected"), "{errors:?}");
    assert!(errors[1].contains("396 bytes from worker 0, but 400 were expected"), "{errors:?}");
}

/// Returns the bytes that one worker sends to another.
fn part_of(from: usize, to: usize, part: usize) -> Bytes {
    Bytes::from(vec![(100 * from + 10 * to + part) as u8; 3000 * part + to])
}

#[test]
fn each_worker_receives_its_partition_and_only_the_root_a_gather() {
    for world in several_workers() {
        let (workers, replicas) = world;
        let got = on_workers(world, move |mut calling, mine| {
            let me = mine.start / replicas;
            let sizes = [part_of(0, me, 0).len(), part_of(0, me, 1).len(), part_of(0, me, 2).len()];
            let pieces =
                calling.all_to_all("pieces", &sizes, |_| 1, |to, part| part_of(me, to, part)).unwrap();
            let last = workers - 1;
            let gathered =
                calling.gather_to(last, "all", part_of(me, last, 1), |from| part_of(from, last, 1).len());
            (pieces, gathered.unwrap())
        });
        for (me, (pieces, gathered)) in got.into_iter().enumerate() {
            for (from, pieces) in pieces.into_iter().enumerate() {
                let expected = (0..3).map(|part| part_of(from, me, part)).collect();
                assert_eq!(
                    pieces,
                    if from == me { Vec::new() } else { expected },
                    "{from} to {me} of {world:?}"
                );
            }
            let all = (0..workers).map(|from| part_of(from, me, 1)).collect();
            assert_eq!(gathered, (me == workers - 1).then_some(all));
        }
    }
    let errors = on_workers((3, 1), |mut calling, mine| {
        let bytes = Bytes::from(vec![0; 4 * (mine.start + 1)]);
        calling.gather_to(0, "all", bytes, |_| 4).map(drop).map_err(|error| error.to_string())
    });
    assert!(
        errors[0].as_ref().is_err_and(|text| text.contains("8 bytes from worker 1, but 4 were expected"))
    );
    assert!(errors[1].is_ok() && errors[2].is_ok());
}
