//! Checks that each collective over MPI is bit-identical to one between workers that are threads of the same process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../crates/collective/tests/it/conformance/leaves.rs"]
mod leaves;
mod support;

use bytes::Bytes;
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::group::{Group, GroupCall, Links, Order, SumOptions, Wire, local, numbers};
use distribute_collective::threads::{Member, Team};
use distribute_collective::{all_gather, all_reduce};
use distribute_mpi::{Error, Settings};
use distribute_tensor::fold::Alone;
use distribute_tensor::{Leaf, Packing, ReduceOp, wire};
use distribute_testing::child;
use leaves::{of_every_dtype, summed};
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::{mpirun, started};

const PATIENCE: Duration = Duration::from_secs(40);

/// The results of a replica's calls, each with the name of the call.
type Got = Vec<(String, Vec<u8>)>;

fn call(operation: Operation, detail: &str) -> Fingerprint {
    Fingerprint::new(operation, detail, Location::caller())
}

fn bytes(leaves: &[Leaf]) -> Vec<u8> {
    wire::encode(leaves).unwrap()
}

const LENGTHS: [usize; 3] = [0, 65, 1001];

/// Makes the calls that each replica makes, and returns their results.
fn of_replicas(member: &Member) -> Got {
    let mut got = Got::new();
    for len in LENGTHS {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            for packing in [Packing::APART, Packing::Bytes(1000), Packing::Count(3)] {
                let name = format!("all_reduce {op} {packing:?} {len}");
                let call = call(Operation::AllReduce, &name);
                let sum = all_reduce(member, call, op, packing, summed(member.replica(), len)).unwrap();
                got.push((name, bytes(&sum.leaves)));
            }
        }
        let name = format!("all_gather {len}");
        let call = call(Operation::AllGather, &name);
        let (all, offsets) = all_gather(member, call, 0, of_every_dtype(member.replica(), len)).unwrap();
        got.push((format!("{name} {offsets:?}"), bytes(&all.leaves)));
    }
    let mine = vec![member.replica() as u64; member.replica()];
    let shared = member.all_gather(call(Operation::Minimize, "share"), mine).unwrap();
    got.push(("share".into(), format!("{shared:?}").into_bytes()));
    got
}

/// Returns the numbers of a replica's vector, whose sum depends on the order in which they are added.
fn vector(replica: usize, len: usize) -> Vec<f32> {
    let exponent = |at: usize| (replica + at) as i32 % 7 - 4;
    (0..len).map(|at| ((replica * 7 + at * 13) % 97) as f32 * 10f32.powi(exponent(at))).collect()
}

/// Returns all combinations of the options of sums.
fn ways() -> impl Iterator<Item = SumOptions> {
    [Order::Exact, Order::Fast].into_iter().flat_map(|order| {
        [Wire::Full, Wire::F16, Wire::Bf16].into_iter().flat_map(move |wire| {
            [0, 10_000].map(|bytes_per_pack| SumOptions { order, wire, bytes_per_pack })
        })
    })
}

/// Makes the calls that are made once for all replicas of a worker, and returns their results.
fn of_workers(member: &Member) -> Got {
    let make = |name: &str, make: &dyn Fn(GroupCall<'_>, &[usize]) -> Vec<u8>| {
        let said = |_| call(Operation::Reduce, name);
        let replicas: Vec<_> = member.session().unwrap().world().local_replicas().collect();
        let made = member.reduce_on_leader(call(Operation::MergeCall, name), (), |_| {
            member.with_group(said, |calling| make(calling, &replicas)).unwrap()
        });
        (name.to_owned(), made.unwrap().to_vec())
    };
    let local = |replicas: &[usize], of: fn(usize, usize) -> Vec<Leaf>, len| -> Vec<Vec<Leaf>> {
        replicas.iter().map(|replica| of(*replica, len)).collect()
    };
    let mut got = Got::new();
    for len in LENGTHS {
        got.push(make(&format!("reduce {len}"), &|calling, replicas| {
            let all = local(replicas, summed, len);
            let all: Vec<_> = all.iter().map(Vec::as_slice).collect();
            bytes(&calling.all_reduce(ReduceOp::Mean, Packing::APART, &all, &Alone).unwrap().leaves)
        }));
        got.push(make(&format!("gather {len}"), &|calling, replicas| {
            let all = local(replicas, of_every_dtype, len);
            let all: Vec<_> = all.iter().map(Vec::as_slice).collect();
            bytes(&calling.all_gather(&all).unwrap().0.concat())
        }));
        got.push(make(&format!("of_first {len}"), &|calling, replicas| {
            bytes(&calling.broadcast(&of_every_dtype(replicas[0], len)).unwrap())
        }));
    }
    got.push(make("records", &|mut calling, replicas| {
        calling.all_gather_bytes(Bytes::from(vec![replicas[0] as u8; 1000 * replicas[0]])).unwrap().concat()
    }));
    // The last is more than MPI sends at once, and than what sockets hold.
    for len in [0, 63, 40_000, 300_000] {
        let vectors = |calling: &GroupCall<'_>, replicas: &[usize]| -> Vec<Bytes> {
            let of = |replica: &usize| {
                let mut buffer = calling.buffers().take(4 * len);
                buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(&vector(*replica, len)));
                buffer.freeze()
            };
            replicas.iter().map(of).collect()
        };
        got.push(make(&format!("exchange {len}"), &|mut calling, replicas| {
            let mine = vectors(&calling, replicas)[0].clone();
            calling.all_gather_sized("vectors", mine.clone(), |_| mine.len()).unwrap().concat()
        }));
        for options in ways().filter(|options| len < 100_000 || options.bytes_per_pack == 0) {
            got.push(make(
                &format!("{}{options}, {len} numbers", native(&options)),
                &|mut calling, replicas| {
                    let count = calling.world().num_replicas_in_sync();
                    let weights: Vec<f32> = (0..count).map(|replica| 1. / (replica + 1) as f32).collect();
                    let mine = vectors(&calling, replicas);
                    calling.all_reduce_vectors(&mine, &weights, &options).unwrap().concat()
                },
            ));
        }
    }
    got
}

/// The prefix of the names of sums that MPI computes itself, in its own order.
const NATIVE: &str = "natively ";

fn native(options: &SumOptions) -> &'static str {
    if options.order == Order::Fast && options.wire == Wire::Full { NATIVE } else { "" }
}

/// Makes all calls on each replica of this worker, and returns the results by replica.
fn on_replicas(group: &Group) -> Vec<Got> {
    let replicas = group.world().replicas();
    let results: Vec<_> = (0..replicas).map(|_| Mutex::new(None)).collect();
    let session = Arc::new(group.open("conformance", 1));
    Arc::new(Team::new(replicas).unwrap()).run_with_session(1, PATIENCE, Some(session), &|member| {
        let got = [of_replicas(&member), of_workers(&member)].concat();
        *results[member.rank()].lock().unwrap() = Some(got);
        true
    });
    results.into_iter().map(|result| result.into_inner().unwrap().unwrap()).collect()
}

/// Returns the results of this worker's replicas when all workers are threads of this process.
fn on_threads(group: &Group) -> Vec<Got> {
    let world = group.world();
    let groups = local::groups(Links::Memory, world.workers(), world.replicas()).unwrap();
    let mut all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| on_replicas(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    all.swap_remove(world.worker())
}

fn compare(group: &Group) {
    let (ours, threads) = (on_replicas(group), on_threads(group));
    assert_eq!(ours.len(), group.world().replicas());
    let mut sums = Vec::new();
    for (replica, (ours, threads)) in ours.iter().zip(&threads).enumerate() {
        assert_eq!(ours.len(), threads.len());
        for ((name, ours), (expected, of_threads)) in ours.iter().zip(threads) {
            assert_eq!(name, expected);
            if name.starts_with(NATIVE) {
                assert_eq!(ours.len(), of_threads.len(), "{name}");
                let numbers = numbers::<f32>(ours).into_owned();
                for (ours, theirs) in numbers.iter().zip(&*numbers_of(of_threads)) {
                    // All numbers are positive: a few roundings.
                    assert!(
                        (ours - theirs).abs() <= 8. * f32::EPSILON * theirs.abs(),
                        "{name}: {ours}, not {theirs}"
                    );
                }
                sums.extend_from_slice(ours);
            } else {
                assert!(ours == of_threads, "{name} on local replica {replica} of {}", group.world());
            }
        }
    }
    // Native sums have the same bits on all workers.
    let session = group.open("compare", 2);
    let world = group.world();
    let call = call(Operation::Reduce, "compare");
    let statuses = world
        .local_replicas()
        .map(|replica| distribute_cluster::ReplicaStatus::waiting(replica, call.clone()));
    let mut calling = GroupCall::new(&session, statuses.collect(), PATIENCE);
    let sums = Bytes::from(sums);
    let all = calling.all_gather_sized("native sums", sums.clone(), |_| sums.len()).unwrap();
    assert!(all.iter().all(|sums| *sums == all[0]) && !all[0].is_empty());
    println!("{} calls agree on {world}", ours[0].len());
}

fn numbers_of(bytes: &[u8]) -> std::borrow::Cow<'_, [f32]> {
    numbers::<f32>(bytes)
}

// INV-7, INV-27
#[test]
fn all_calls_have_the_bits_of_threads() {
    if let Some(replicas) = child::part() {
        let settings = Settings { replicas: replicas.parse().unwrap(), ..Settings::default() };
        return distribute_mpi::run(settings, |group| {
            compare(&group);
            Ok::<(), Error>(())
        })
        .unwrap();
    }
    for (ranks, replicas) in [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2)] {
        let said = started(mpirun("all_calls_have_the_bits_of_threads", ranks, &replicas.to_string()), true);
        assert_eq!(said.matches("calls agree").count(), ranks, "{said}");
    }
}
