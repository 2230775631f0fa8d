//! Checks that pinning replicas to cores does not pin other threads. Tests run in separate processes, because rayon's
//! global threads are started once.

use distribute::prelude::*;
use distribute_testing::child::alone;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::sync::Barrier;

/// Returns the number of cores on which this thread may run.
fn cores() -> usize {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).count()
}

#[test]
fn threads_of_rayon_that_a_replica_is_the_first_to_use_run_anywhere() {
    alone("pinned::threads_of_rayon_that_a_replica_is_the_first_to_use_run_anywhere", || {
        let all = cores();
        let strategy = MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]).pin_threads().build().unwrap();
        let mine = strategy.run((), |_, ()| {
            rayon::broadcast(|_| ());
            Ok(cores() as u64)
        });
        assert_eq!(mine.unwrap().values(), [1, 1]);
        assert!(rayon::broadcast(|_| cores()).into_iter().all(|cores| cores == all));
    });
}

#[test]
fn replicas_that_a_pinned_one_starts_run_anywhere_later() {
    alone("pinned::replicas_that_a_pinned_one_starts_run_anywhere_later", || {
        let all = cores() as u64;
        let pinned: Strategy =
            MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]).pin_threads().build().unwrap();
        let inside = pinned.run((), |ctx, ()| {
            ctx.merge_call((), |strategy, _: PerReplica<()>| {
                let cores_of_replicas = strategy.run((), |_, ()| Ok(cores() as u64))?;
                assert_eq!(cores_of_replicas.values(), [1, 1]);
                Ok(PerReplica::from_values(vec![(), ()]))
            })?;
            Ok(cores() as u64)
        });
        assert_eq!(inside.unwrap().values(), [1, 1]);
        // Two runs at once take the threads of both runs above.
        let (free, both) = (MirroredStrategy::cpus(2).unwrap(), Barrier::new(2));
        let run = || {
            let run = free.run((), |ctx, ()| {
                if ctx.replica_id_in_sync_group() == 0 {
                    both.wait();
                }
                Ok(cores() as u64)
            });
            assert_eq!(run.unwrap().values(), [all, all]);
        };
        std::thread::scope(|scope| [(); 2].map(|()| scope.spawn(run)).map(|thread| thread.join().unwrap()));
    });
}
