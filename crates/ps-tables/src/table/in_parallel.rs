//! Independent pieces of work, divided among threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Returns the number of threads that create `bytes` bytes: one for each core, but none for less than a few megabytes,
/// which take as long as starting a thread.
pub(super) fn threads_for(bytes: usize) -> usize {
    const LEAST: usize = 4 << 20;
    match bytes / LEAST {
        0 | 1 => 1,
        parts => thread::available_parallelism().map_or(1, usize::from).min(parts),
    }
}

/// Returns `make(0)` to `make(count - 1)`, made by at most `threads` threads, one of which is the calling thread. If
/// threads cannot be started, there are fewer.
///
/// # Panics
/// Panics if `make` does.
pub(super) fn in_parallel<T: Send>(count: usize, threads: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let each = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        each.take_while(|number| *number < count).map(|number| (number, make(number))).collect::<Vec<_>>()
    };
    let mut made = thread::scope(|scope| {
        let start = |_| thread::Builder::new().name("new table".into()).spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (1..threads.min(count)).map_while(start).collect();
        let mut made = work();
        for helper in helpers {
            made.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        made
    });
    made.sort_unstable_by_key(|(number, _)| *number);
    made.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;
    use std::sync::Barrier;

    #[test]
    fn each_piece_is_made_once_and_all_threads_take_part() {
        watched(|| {
            for (count, threads) in [(0, 4), (1, 4), (3, 1), (4, 4), (100, 3)] {
                assert_eq!(in_parallel(count, threads, |i| i), (0..count).collect::<Vec<_>>());
            }
            // No thread makes two of them, because all wait for each other.
            let all = Barrier::new(4);
            assert_eq!(in_parallel(4, 4, |i| (all.wait(), i).1), [0, 1, 2, 3]);
        });
    }

    #[test]
    fn small_tables_start_no_thread() {
        assert_eq!((threads_for(0), threads_for(7 << 20)), (1, 1));
        let cores = thread::available_parallelism().unwrap().get();
        assert_eq!(threads_for(usize::MAX), cores);
        assert_eq!(threads_for(8 << 20), cores.min(2));
    }
}
