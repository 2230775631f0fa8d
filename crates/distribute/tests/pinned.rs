//! Replicas that are kept on cores keep nobody else there. In a process of its own: rayon's global threads are started once.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/watched.rs"]
mod watched;

use distribute::MirroredStrategy;
use rustix::thread::{CpuSet, sched_getaffinity};
use watched::watched;

/// How many cores this thread may run on.
fn cores() -> usize {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).count()
}

#[test]
fn threads_of_rayon_that_a_replica_is_the_first_to_use_run_anywhere() {
    watched(|| {
        let all = cores();
        let strategy = MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]).pinned(true).build().unwrap();
        let mine = strategy.run((), |_, ()| {
            rayon::broadcast(|_| ());
            Ok(cores() as u64)
        });
        assert_eq!(mine.unwrap().values(), [1, 1]);
        assert!(rayon::broadcast(|_| cores()).into_iter().all(|cores| cores == all));
    });
}
