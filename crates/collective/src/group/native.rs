//! Sums that a library of the transport computes, such as MPI.

use super::wire::Real;
use super::{GroupCall, SumOptions, raw};
use crate::Failure;
use bytes::Bytes;

/// Returns the sum of the vectors of all workers, computed by the library of the transport. Returns `None` if there is
/// no library, or if a worker cannot use it; all workers then use an [`Algorithm`](super::Algorithm).
///
/// Such a library waits for all workers, and does not report which one is missing. Workers therefore agree on the call
/// first. If the library fails, they run another round, whose error names the workers that time out or are lost.
///
/// # Errors
/// - [`Failure::Blame`]: a round fails.
/// - [`Failure::Native`]: the library fails although all workers take part in the other round.
/// - [`Failure::Record`]: the library returns a sum of a different length.
pub(super) fn sum<F: Real>(
    calling: &mut GroupCall<'_>,
    mine: &Bytes,
    options: &SumOptions,
) -> Result<Option<Bytes>, Failure> {
    let (transport, timeout) = (calling.transport(), calling.timeout());
    let Some(library) = transport.native_sum() else { return Ok(None) };
    let what = format!("its part of {} bytes {options}, by {}", mine.len(), library.name());
    let able = u8::from(library.supports(mine.len()));
    let all = calling.subround(&what, |_| Bytes::copy_from_slice(&[able]))?;
    let me = calling.world().worker();
    if able == 0 || all.iter().enumerate().any(|(worker, able)| worker != me && **able != [1]) {
        return Ok(None);
    }
    match library.sum(mine.clone(), F::NUMBER, timeout) {
        Ok(sum) => {
            raw::require_length(me, &sum, mine.len())?;
            Ok(Some(sum))
        }
        Err(reason) => {
            calling.next_round(&format!("{what}, which has failed"), |_| Bytes::new())?;
            Err(Failure::Native { library: library.name(), reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Group, Inbox, Order, Session};
    use super::*;
    use bytemuck::{cast_slice, pod_collect_to_vec};
    use distribute_cluster::{Fault, Fingerprint, Operation, ReplicaStatus, World};
    use distribute_net::memory::{self, Memory};
    use distribute_net::{Message, NativeSum, Number, PollOutcome, Receiver, Transport};
    use distribute_testing::watched;
    use std::panic::Location;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier, Mutex};
    use std::time::Duration;

    const WORKERS: usize = 3;
    const LEN: usize = 1000;

    /// A library for threads, which adds the vectors of all workers in the order in which they arrive.
    #[derive(Debug)]
    struct Library {
        sum: Mutex<Vec<f32>>,
        met: Barrier,
        used: AtomicUsize,
    }

    /// The behavior of a worker that uses the library.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Use {
        Able,
        Unable,
        Fails,
        /// The worker's process exits during the sum.
        Dies,
    }
    use Use::{Able, Dies, Fails, Unable};

    /// Links in memory, with a [`Library`] in addition.
    #[derive(Debug)]
    struct Links {
        memory: Memory,
        library: Arc<Library>,
        by: Use,
    }

    impl Transport for Links {
        fn send(&self, to: usize, message: Message) {
            self.memory.send(to, message);
        }
        fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
            self.memory.poll(patience, is_there)
        }
        fn native_sum(&self) -> Option<&dyn NativeSum> {
            Some(self)
        }
        fn close(&self) {
            self.memory.close();
        }
    }

    impl NativeSum for Links {
        fn name(&self) -> &'static str {
            "a test"
        }
        fn supports(&self, _bytes: usize) -> bool {
            self.by != Unable
        }
        fn sum(&self, vector: Bytes, number: Number, _patience: Duration) -> Result<Bytes, String> {
            assert_eq!(number, Number::F32);
            match self.by {
                Fails => return Err("out of luck".into()),
                Dies => {
                    self.close();
                    std::panic::resume_unwind(Box::new("dead"));
                }
                Able | Unable => {}
            }
            let mine: Vec<f32> = pod_collect_to_vec(&vector);
            self.library.sum.lock().unwrap().iter_mut().zip(mine).for_each(|(sum, mine)| *sum += mine);
            self.library.met.wait();
            self.library.used.fetch_add(1, Ordering::Relaxed);
            Ok(Bytes::copy_from_slice(cast_slice(&self.library.sum.lock().unwrap())))
        }
    }

    fn calling(session: &Session) -> GroupCall<'_> {
        let call = Fingerprint::new(Operation::AllReduce, "vectors", Location::caller());
        let statuses = vec![ReplicaStatus::waiting(session.world().worker(), call)];
        GroupCall::new(session, statuses, Duration::from_secs(30))
    }

    /// Returns the results of `body` on each remaining worker, and the number of workers to which the library returned
    /// a sum.
    fn on_workers<T: Send + 'static>(
        uses: [Use; WORKERS],
        body: impl Fn(&Group, Result<Vec<f32>, Failure>) -> T + Send + Sync + 'static,
    ) -> (Vec<T>, usize) {
        watched(move || {
            let library = Arc::new(Library {
                sum: Mutex::new(vec![0.; LEN]),
                met: Barrier::new(WORKERS),
                used: AtomicUsize::new(0),
            });
            let inboxes: Vec<_> = uses.iter().map(|_| Inbox::new(WORKERS)).collect();
            let receivers =
                inboxes.iter().map(|inbox| Arc::new(inbox.clone()) as Arc<dyn Receiver>).collect();
            let all = memory::transports(receivers).into_iter().zip(inboxes).zip(uses).enumerate();
            let groups: Vec<_> = all
                .map(|(worker, ((memory, inbox), by))| {
                    let links = Links { memory, library: library.clone(), by };
                    Group::new(World::new(WORKERS, worker, 1).unwrap(), Arc::new(links), inbox)
                })
                .collect();
            let run = |group: &Group| {
                let session = group.open("native", 1);
                let mine = vec![(group.world().worker() + 1) as f32; LEN];
                let mine = Bytes::copy_from_slice(cast_slice(&mine));
                let options = SumOptions { order: Order::Fast, ..SumOptions::default() };
                let sum = calling(&session).all_reduce_vectors(&[mine], &[1f32; WORKERS], &options);
                body(group, sum.map(|pieces| pod_collect_to_vec(&pieces.concat())))
            };
            let results = std::thread::scope(|scope| {
                let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| run(group))).collect();
                threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
            });
            (results, library.used.load(Ordering::Relaxed))
        })
    }

    #[test]
    fn the_library_sums_where_all_workers_can_use_it() {
        for (uses, used) in [([Able; 3], WORKERS), ([Able, Unable, Able], 0), ([Unable; 3], 0)] {
            let (sums, found) = on_workers(uses, |_, sum| sum.unwrap());
            assert_eq!(sums, [[6.; LEN]; WORKERS], "{uses:?}");
            assert_eq!(found, used, "{uses:?}");
        }
    }

    // INV-31
    #[test]
    fn where_it_fails_on_all_each_gets_its_reason_and_the_group_works_on() {
        let (errors, _) = on_workers([Fails; 3], |group, sum| {
            let records =
                calling(&group.open("next", 2)).all_gather_bytes(Bytes::from_static(b"on")).unwrap();
            assert!(records.iter().all(|record| record == "on"));
            sum.unwrap_err().to_string()
        });
        assert_eq!(errors, ["a test cannot sum: out of luck"; WORKERS]);
    }

    // INV-2
    #[test]
    fn a_worker_that_dies_in_it_is_named_on_the_others() {
        let (blames, _) = on_workers([Fails, Dies, Fails], |_, sum| match sum {
            Err(Failure::Blame(blame)) => blame,
            other => panic!("{other:?}"),
        });
        assert_eq!(blames.len(), WORKERS - 1);
        for blame in blames {
            assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Lost, &[1][..]), "{blame}");
        }
    }
}
