//! Tests of the setup with workers on threads and a replacement for NCCL.

use super::*;
use crate::CallError;
use crate::offer::Gpu;
use bytemuck::{cast_slice, pod_collect_to_vec};
use distribute_collective::Failure;
use distribute_collective::group::{Links, Order, SumOptions, local};
use distribute_net::{NativeSum, Number};
use distribute_testing::watched;
use std::collections::BTreeMap;
use std::sync::Mutex;

const PATIENCE: Duration = Duration::from_secs(30);

/// The behaviour of the replacement on one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Well,
    NoGpu,
    /// The call that links the workers fails.
    Unlinked,
    /// The sums fail.
    Fails,
    /// The sums never end.
    Hangs,
}
use Act::{Fails, Hangs, NoGpu, Unlinked, Well};

/// The vectors that all workers of one communicator have contributed.
#[derive(Debug, Default)]
struct Contributions {
    linked: BTreeMap<usize, UniqueId>,
    /// The vectors of each sum, by the number of the sum.
    brought: BTreeMap<usize, Vec<Vec<f32>>>,
    aborted: usize,
}

struct Played {
    contributions: Arc<Mutex<Contributions>>,
    act: Act,
    worker: usize,
    workers: usize,
    sums: usize,
}

fn failed(call: &'static str) -> CallError {
    CallError { call, reason: "unhandled system error".into() }
}

impl Library for Played {
    fn release(&self) -> i32 {
        22703
    }
    fn gpu(&self) -> Result<Gpu, CallError> {
        Ok([self.worker as u8; 16])
    }
    fn unique_id(&self) -> Result<UniqueId, CallError> {
        Ok([self.worker as u8 + 7; 128])
    }
    fn link(&mut self, id: UniqueId, worker: usize, workers: usize) -> Result<(), CallError> {
        (self.worker, self.workers) = (worker, workers);
        self.contributions.lock().unwrap().linked.insert(worker, id);
        if self.act == Unlinked { Err(failed("ncclCommInitRankConfig")) } else { Ok(()) }
    }
    fn is_linked(&mut self) -> Result<bool, CallError> {
        Ok(self.contributions.lock().unwrap().linked.len() == self.workers)
    }
    fn room(&self) -> usize {
        1 << 20
    }
    fn begin(&mut self, vector: &[u8], number: Number) -> Result<(), CallError> {
        assert_eq!(number, Number::F32);
        self.contributions
            .lock()
            .unwrap()
            .brought
            .entry(self.sums)
            .or_default()
            .push(pod_collect_to_vec(vector));
        Ok(())
    }
    fn sum(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        if self.act == Fails {
            return Err(failed("ncclAllReduce"));
        }
        let contributions = self.contributions.lock().unwrap();
        let brought = &contributions.brought[&self.sums];
        if self.act == Hangs || brought.len() < self.workers {
            return Ok(None);
        }
        let sum: Vec<f32> = (0..brought[0].len()).map(|at| brought.iter().map(|of| of[at]).sum()).collect();
        self.sums += 1;
        Ok(Some(cast_slice(&sum).to_vec()))
    }
    fn abort(&mut self) {
        self.contributions.lock().unwrap().aborted += 1;
    }
}

/// Runs `body` on each worker with the result of the setup. Returns the result of `body` on each worker, and the
/// contributions.
fn on_workers<T: Send + 'static>(
    acts: &'static [Act],
    body: impl Fn(usize, Result<Group, Error>) -> T + Send + Sync + 'static,
) -> (Vec<T>, Contributions) {
    watched(move || {
        let contributions = Arc::<Mutex<Contributions>>::default();
        let groups = local::groups(Links::Tcp, acts.len(), 2).unwrap();
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = groups
                .into_iter()
                .zip(acts)
                .map(|(group, act)| {
                    let (contributions, body) = (contributions.clone(), &body);
                    scope.spawn(move || {
                        let worker = group.world().worker();
                        let settings = Settings::default().timeout(PATIENCE);
                        let open = |gpu| match act {
                            NoGpu => Err(Error::NoGpu { gpu, count: 1 }),
                            // All workers are on this host.
                            _ => Ok(Played { contributions, act: *act, worker: gpu, workers: 0, sums: 0 }),
                        };
                        body(worker, over_by(group, settings, Location::caller(), open))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (results, std::mem::take(&mut *contributions.lock().unwrap()))
    })
}

/// Sums vectors of `numbers` elements over all workers. Each element of a worker's vector is the worker's number plus
/// 1.
fn sum(group: &Group, numbers: usize, timeout: Duration) -> Result<Vec<f32>, Failure> {
    let world = group.world();
    let session = group.open("sum", 1);
    let call = Fingerprint::new(Operation::AllReduce, "numbers", Location::caller());
    let statuses = world.local_replicas().map(|replica| ReplicaStatus::waiting(replica, call.clone()));
    let mine = vec![(world.worker() + 1) as f32; numbers];
    let options = SumOptions { order: Order::Fast, ..SumOptions::default() };
    let weights = vec![1f32; world.workers()];
    GroupCall::new(&session, statuses.collect(), timeout)
        .all_reduce_vectors(&[Bytes::copy_from_slice(cast_slice(&mine))], &weights, &options)
        .map(|pieces| pod_collect_to_vec(&pieces.concat()))
}

#[test]
fn all_workers_are_linked_by_the_name_of_worker_0_and_the_library_sums() {
    let (sums, contributions) =
        on_workers(&[Well; 3], |_, group| sum(&group.unwrap(), 1000, PATIENCE).unwrap());
    assert_eq!(sums, [[6.; 1000]; 3]);
    assert_eq!(contributions.linked, (0..3).map(|worker| (worker, [7; 128])).collect());
    assert_eq!(contributions.brought.len(), 1);
}

#[test]
fn a_sum_that_exceeds_the_memory_of_a_gpu_uses_another_algorithm() {
    let (sums, contributions) =
        on_workers(&[Well; 2], |_, group| sum(&group.unwrap(), 1 << 19, PATIENCE).unwrap());
    assert!(sums.iter().all(|sum| *sum == vec![3.; 1 << 19]));
    assert_eq!(contributions.brought.len(), 0);
}

// INV-2
#[test]
fn where_one_worker_cannot_none_does_and_it_is_named() {
    let (errors, contributions) = on_workers(&[Well, NoGpu, Well], |_, group| group.unwrap_err().to_string());
    assert!(errors[1].starts_with("there is no GPU 1: CUDA has 1 here"), "{errors:?}");
    for other in [&errors[0], &errors[2]] {
        assert_eq!(*other, format!("worker 1 cannot use NCCL, so no worker can: {}", errors[1]));
    }
    assert_eq!(contributions.linked.len(), 0);
}

// INV-2
#[test]
fn a_worker_that_makes_another_call_is_named_with_its_replicas() {
    watched(|| {
        let other = |group: &Group| {
            let session = group.open("nccl", 0);
            let call = Fingerprint::new(Operation::Barrier, "", Location::caller());
            let replicas = session.world().local_replicas();
            let statuses = replicas.map(|replica| ReplicaStatus::waiting(replica, call.clone())).collect();
            GroupCall::new(&session, statuses, PATIENCE).all_gather_bytes(Bytes::new()).unwrap_err()
        };
        let [first, second]: [Group; 2] = local::groups(Links::Memory, 2, 2).unwrap().try_into().unwrap();
        let errors = std::thread::scope(|scope| {
            let settings = Settings::default().timeout(PATIENCE);
            let open = |gpu| Err::<Played, _>(Error::NoGpu { gpu, count: 0 });
            let setup = scope.spawn(move || over_by(second, settings, Location::caller(), open).unwrap_err());
            [other(&first).to_string(), setup.join().unwrap().to_string()]
        });
        for error in &errors {
            assert!(error.contains("NCCL is set up") && error.contains("replicas 2 and 3"), "{errors:?}");
        }
    });
}

// INV-2
#[test]
fn where_one_worker_cannot_be_linked_all_give_up() {
    let (errors, contributions) =
        on_workers(&[Well, Well, Unlinked], |_, group| group.unwrap_err().to_string());
    let why = "NCCL cannot be set up: ncclCommInitRankConfig: unhandled system error";
    assert_eq!(errors[2], why);
    for other in &errors[..2] {
        assert_eq!(*other, format!("worker 2 cannot use NCCL, so no worker can: {why}"));
    }
    assert_eq!(contributions.aborted, 3);
}

// INV-31
#[test]
fn a_sum_that_fails_is_an_error_of_all_and_the_workers_go_on_without_the_library() {
    let (results, contributions) = on_workers(&[Fails; 2], |_, group| {
        let group = group.unwrap();
        let error = sum(&group, 10, PATIENCE).unwrap_err().to_string();
        (error, sum(&group, 10, PATIENCE).unwrap())
    });
    for (error, next) in results {
        assert_eq!(error, "NCCL cannot sum: ncclAllReduce: unhandled system error");
        assert_eq!(next, [3.; 10]);
    }
    assert_eq!((contributions.brought.len(), contributions.aborted), (1, 2));
}

// INV-3
#[test]
fn a_sum_that_does_not_end_is_given_up_at_its_deadline_and_when_a_worker_is_lost() {
    watched(|| {
        for (is_lost, patience, reason) in [
            (false, Duration::from_millis(100), "not all workers have arrived within 0.1 s"),
            (true, PATIENCE, "worker 1 was lost"),
        ] {
            let mut groups = local::groups(Links::Memory, 2, 1).unwrap();
            let other = groups.pop().unwrap();
            if is_lost {
                other.end();
            }
            let contributions = Arc::<Mutex<Contributions>>::default();
            let played =
                Played { contributions: contributions.clone(), act: Hangs, worker: 0, workers: 2, sums: 0 };
            let sums = Sums::new(played, groups.remove(0));
            assert!(sums.supports(8) && !sums.supports(0));
            let vector = Bytes::from_static(&[0; 8]);
            assert_eq!(sums.sum(vector, Number::F32, patience).unwrap_err(), reason);
            assert!(!sums.supports(8));
            assert_eq!(contributions.lock().unwrap().aborted, 1);
        }
    });
}

#[test]
fn without_the_libraries_the_error_names_the_packages() {
    if Nccl::get().is_ok() && installed::check_driver().is_ok() {
        println!("skipped: NCCL and CUDA's driver are here");
        return;
    }
    watched(|| {
        let group = local::groups(Links::Memory, 1, 1).unwrap().remove(0);
        let error = over(group, Settings::default()).unwrap_err();
        assert!(matches!(error, Error::Nccl { .. } | Error::Driver { .. }), "{error}");
        assert!(error.to_string().contains("Install N"), "{error}");
    });
}
