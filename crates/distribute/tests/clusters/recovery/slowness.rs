//! Workers that are slower than the others, each for its own reason.

use distribute::strategy::StragglerPolicy;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The work of a step, and the ways in which a worker may be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The processor time that each replica needs.
    pub computing: Duration,
    /// The way in which this worker is slow; `None` if it is not.
    pub slowness: Option<Slowness>,
    /// The reaction to a straggler.
    pub reaction: Reaction,
}

/// The reaction to a straggler, half a second after it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reaction {
    Warn,
    Replace,
    Rebalance,
}

impl Reaction {
    pub fn policy(self) -> StragglerPolicy {
        let after = Duration::from_millis(500);
        match self {
            Reaction::Warn => StragglerPolicy::Warn,
            Reaction::Replace => StragglerPolicy::Replace { after },
            Reaction::Rebalance => StragglerPolicy::Rebalance { after },
        }
    }
}

/// The way in which a worker is slow, and the additional time of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Slowness {
    /// Reading an element takes this time longer.
    Input(Duration),
    /// Each replica of the worker needs this much more processor time.
    Computing(Duration),
    /// The program waits for this time between the steps.
    Outside(Duration),
}

impl Work {
    /// Reads an element.
    pub fn read(&self) {
        if let Some(Slowness::Input(time)) = self.slowness {
            pause(time);
        }
    }

    /// Computes in a step.
    pub fn compute(&self) {
        match self.slowness {
            Some(Slowness::Computing(time)) => burn(self.computing + time),
            _ => burn(self.computing),
        }
    }

    /// Acts between two steps.
    pub fn between(&self) {
        if let Some(Slowness::Outside(time)) = self.slowness {
            pause(time);
        }
    }
}

/// Uses processor time, however long that takes.
fn burn(time: Duration) {
    let until = thread_time() + time;
    while thread_time() < until {
        std::hint::spin_loop();
    }
}

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Uses no processor time, as a slow disk does.
fn pause(time: Duration) {
    let (_open, never) = channel::<()>();
    let _ = never.recv_timeout(time);
}

/// A process that runs only part of the time, as if other programs had its cores. It runs again when this is dropped.
pub struct Throttled {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Throttled {
    /// Stops a process again and again for `stopped`, and lets it run for `runs` in between.
    pub fn new(process: Pid, stopped: Duration, runs: Duration) -> Self {
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let is_over = |time| ended.recv_timeout(time) != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            // The process may have ended.
            let send = |signal| kill_process(process, signal).is_ok();
            while send(Signal::STOP) {
                let over = is_over(stopped);
                if !send(Signal::CONT) || over || is_over(runs) {
                    break;
                }
            }
        });
        Self { thread: Some((end, thread)) }
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}
