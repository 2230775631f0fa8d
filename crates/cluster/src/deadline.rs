//! The deadlines of waits. This is the only module in the project that reads the clock.

// - INV-3: the waits that end with their owner. A team's threads wait until they get work or are dismissed; the
//   leader dismisses them when dropped, also by a panic. `broadcast` waits for members that hold its loan, and logs
//   them. A caller whose run is on another thread waits for it, and the waits on that thread have deadlines. A
//   replica's parallel operations are done by its own threads, replica 0's on a thread of the program by rayon's
//   global ones. Helpers wait for a leader that runs this project's own code; code of users inside a step runs
//   while the others wait in a rendezvous. `on_threads` waits for the closures of its workers, which belong to its
//   caller. A channel of a stage on a thread, of jobs for threads or of an object behind a URL ends with either
//   end, and each request for a part of an object has a deadline. The thread of a mesh ends with the mesh, by the
//   deadline of its shutdown wait. The thread of a lookup ends when the system gives up, and the one that aborts
//   communicators of NCCL when NCCL releases them; no thread waits for either. Work in the queue of a GPU ends when
//   the GPU has done it, for which candle has no deadline. The thread that receives SIGTERM ends with its
//   `Preemption`. `distribute_mpi::run` waits for processes that still run; its wait for the others has a deadline.
//   A spare waits as long as the first worker holds its connection, whose silence has a deadline. `Server::join`
//   waits for the server's end, which waits ten seconds for a service that is still busy. A program
//   that is measured is killed when dropped, with all its child processes, and its readers end with it. A launcher
//   waits for its tasks as long as they run; its actions on them, and its wait for the readers of their output
//   after they have exited, have deadlines. A write of a variable or slot waits while a save in the background copies
//   it, which is work in memory. A thread that blocks in a write ends with the process. Time in which
//   the complete process was suspended counts to no deadline of a wait for members. Tests:
//   `collective/tests/team.rs`, `collective/tests/it/pause.rs`, `computing/rayon.rs`,
//   `computing/optimizer/own_code.rs`, `nccl/communicators/tests.rs`, `distribute/tests/devices/gpus.rs` (with CUDA
//   in software), `data/src/operations/prefetch.rs`, `operations/ahead.rs`, `data/src/worker_pool.rs`,
//   `data/src/file/object_store.rs`, `bench/src/program.rs`,
//   `computing/resume/background.rs`.

#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant, SystemTime};

/// The default timeout of a wait.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum time between two checks of the clock during a wait.
const SLICE: Duration = Duration::from_millis(100);

/// A limit on the time that a wait may take.
///
/// A wait is split into slices, and [`look`](Self::look) is called between them. If a slice takes much longer than
/// planned, the process was probably suspended, by SIGSTOP or in a frozen container. The process did no work then, so
/// this time does not count.
///
/// A thread that waits for a core looks the same, however. Half a slice therefore always counts, so that a deadline
/// passes within `2 * timeout / slice + 1` looks, even if each of them is delayed.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Option<Instant>,
    timeout: Duration,
    slice: Duration,
    /// The time of the last check.
    seen: Instant,
}

impl Deadline {
    /// Creates a deadline that passes `timeout` from now. If that is beyond the range of the clock, the deadline never
    /// passes.
    pub fn after(timeout: Duration) -> Self {
        Self::from(Instant::now(), timeout)
    }

    fn from(now: Instant, timeout: Duration) -> Self {
        let at = now.checked_add(timeout);
        let slice = match at {
            Some(_) => (timeout / 8).clamp(Duration::from_millis(1), SLICE),
            // This deadline never passes. A slice of centuries would overflow the clock of some systems.
            None => Duration::from_secs(3600),
        };
        Self { at, timeout, slice, seen: now }
    }

    /// Returns the timeout with which the deadline was created, for error messages.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Checks the clock, and returns how long to wait until the next check: a slice, or the remaining time if
    /// that is less. Returns zero once the deadline has passed.
    ///
    /// Call this before and after each wait, and do no other work in between.
    pub fn look(&mut self) -> Duration {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Duration {
        let Some(at) = &mut self.at else { return self.slice };
        let gap = now.saturating_duration_since(self.seen);
        if gap > 2 * self.slice {
            // The process was suspended at some point of the slice: half of the slice counts.
            *at += gap - self.slice / 2;
        }
        self.seen = now;
        at.saturating_duration_since(now).min(self.slice)
    }

    /// Returns the remaining time: zero after the deadline has passed, and [`Duration::MAX`] if it never passes. Time
    /// for which the process was suspended before the last [`look`](Self::look) does not count.
    pub fn remaining(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the deadline has passed. Time for which the process was suspended before the last
    /// [`look`](Self::look) does not count.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }
}

/// A stopwatch, which measures elapsed time.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts a new stopwatch.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Returns the time since the start in seconds.
    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

/// Returns the processor time that all threads of this process have used; `None` if the system does not report it.
pub fn processor_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(unix))]
    None
}

/// Rounds a duration for messages: to 0.1 s if it is at least 10 s, and otherwise to 1 ms. A duration of less than 1 ms
/// is not rounded.
///
/// ```
/// use distribute_cluster::rounded;
/// use std::time::Duration;
/// assert_eq!(format!("{:?}", rounded(Duration::from_secs_f64(59.999826402))), "60s");
/// assert_eq!(format!("{:?}", rounded(Duration::from_secs_f64(1.23456))), "1.235s");
/// ```
pub fn rounded(duration: Duration) -> Duration {
    let step = if duration.as_secs() < 10 { 1_000 } else { 100_000 };
    let micros = duration.as_micros();
    // A shorter duration must not round to zero.
    if micros < step {
        return duration;
    }
    Duration::from_micros(u64::try_from((micros + step / 2) / step * step).unwrap_or(u64::MAX))
}

/// Returns the wall-clock time since 1970 (the Unix epoch), for files and messages. Do not measure waits with it,
/// because the system may set the clock back.
pub fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passed_deadline_has_nothing_left() {
        let deadline = Deadline::after(Duration::ZERO);
        assert!(deadline.has_passed());
        assert_eq!(deadline.remaining(), Duration::ZERO);
    }

    #[test]
    fn a_deadline_beyond_the_clock_never_comes() {
        let deadline = Deadline::after(Duration::MAX);
        assert!(!deadline.has_passed());
        assert_eq!(deadline.timeout(), Duration::MAX);
        let mut deadline = deadline;
        assert_eq!(deadline.look(), Duration::from_secs(3600));
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns the remaining time and the total duration, after looks at the given times, in milliseconds since the
    /// start.
    fn looked(timeout: Duration, looks: &[u64]) -> (Duration, Duration) {
        let start = Instant::now();
        let mut deadline = Deadline::from(start, timeout);
        let left = looks.iter().map(|look| deadline.look_at(start + ms(*look))).last().unwrap();
        (left, deadline.at.unwrap() - start)
    }

    #[test]
    fn time_in_which_the_process_was_suspended_does_not_count() {
        // Without a delay, and with delays that are common for threads.
        assert_eq!(looked(ms(1000), &[0, 100, 200]), (ms(100), ms(1000)));
        assert_eq!(looked(ms(1000), &[0, 190, 380, 570, 760, 950]), (ms(50), ms(1000)));
        assert_eq!(looked(ms(1000), &[0, 190, 380, 570, 760, 950, 1001]), (ms(0), ms(1000)));
        // The second slice lasts 5 s.
        assert_eq!(looked(ms(1000), &[0, 100, 5100]), (ms(100), ms(5950)));
        // Suspended before the wait began, and again in its last slice.
        assert_eq!(looked(ms(240), &[5000]).1, ms(5225));
        assert_eq!(looked(ms(1000), &[0, 150, 300, 450, 600, 750, 900, 2900]), (ms(50), ms(2950)));
    }

    /// Checks that a deadline passes on a busy machine, or in a container with a small share of a core, where it looks
    /// as if the process were suspended again and again.
    #[test]
    fn a_deadline_passes_also_where_each_look_comes_late() {
        for (timeout, gap) in [(1000, 201), (1000, 5000), (60_000, 250), (80, 30), (4, 10)] {
            let start = Instant::now();
            let mut deadline = Deadline::from(start, ms(timeout));
            let most = 2 * ms(timeout).as_nanos() / deadline.slice.as_nanos() + 1;
            let passed = (1..=most as u64).any(|look| deadline.look_at(start + ms(look * gap)).is_zero());
            assert!(passed, "{timeout} ms, looked at each {gap} ms");
        }
    }

    #[test]
    fn short_deadlines_are_looked_at_more_often() {
        assert_eq!(looked(ms(80), &[0]).0, ms(10));
        assert_eq!(looked(ms(4), &[0]).0, ms(1));
        assert_eq!(looked(Duration::ZERO, &[0]).0, Duration::ZERO);
    }
}
