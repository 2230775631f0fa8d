//! Idle threads of teams, counted in their own process.

use distribute_collective::threads::TeamPool;
use distribute_testing::child::alone;
use std::sync::Barrier;
use std::time::Duration;

/// Returns the number of threads of replicas in this process.
fn replicas() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| name(task.unwrap()).ok()).filter(|name| name.starts_with("replica")).count()
}

/// Starts this number of runs of eight replicas at once.
fn at_once(runs: usize) {
    let all = Barrier::new(runs);
    std::thread::scope(|scope| {
        for _ in 0..runs {
            scope.spawn(|| {
                TeamPool::shared()
                    .with_team(8, |team| {
                        all.wait();
                        team.run(1, Duration::from_secs(60), &|_| true);
                    })
                    .unwrap();
            });
        }
    });
}

#[test]
fn few_idle_threads_are_kept() {
    alone("idle::few_idle_threads_are_kept", || {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..3 {
            at_once(40);
            // Threads that were dismissed need a moment to end.
            while replicas() > cores.max(4 * 7) {
                std::thread::yield_now();
            }
        }
        let kept = replicas();
        at_once(1);
        assert_eq!(replicas(), kept);
    });
}
