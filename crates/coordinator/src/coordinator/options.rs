//! The settings of a coordinator.

use crate::dispatch::Limits;
use std::time::Duration;

/// The settings of a [`Coordinator`](super::Coordinator).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long all waits for workers to come back last; 60 s by default.
    pub timeout: Duration,
    /// How long to wait until all workers have answered for the first time; 60 s by default.
    pub join_timeout: Duration,
    /// How long a closure may run; 10 minutes by default. One that runs for longer fails, and its worker is given up until it answers
    /// anew.
    pub closure_timeout: Duration,
    /// How long a closure may still run when it was cancelled; 10 s by default. Then it is as if it had ended, and its worker is given
    /// up.
    pub cancel_timeout: Duration,
    /// How many closures may wait for a worker; 262,144 by default. Who schedules more waits.
    pub queue: usize,
    /// How many closures a worker may have, the one that it runs included, while closures are short and many wait; 16 by default.
    pub window: usize,
    /// How often a closure is run again because the worker that ran it was lost; 5 times by default.
    pub losses: u32,
    /// How often a closure is run again because a parameter server did not answer; twice by default.
    pub server_failures: u32,
}

impl Default for Options {
    fn default() -> Self {
        let Limits { queue, window, losses, server_failures } = Limits::default();
        Self {
            timeout: Duration::from_secs(60),
            join_timeout: Duration::from_secs(60),
            closure_timeout: Duration::from_secs(600),
            cancel_timeout: Duration::from_secs(10),
            queue,
            window,
            losses,
            server_failures,
        }
    }
}

impl Options {
    pub(super) fn limits(&self) -> Limits {
        let Self { queue, window, losses, server_failures, .. } = *self;
        Limits { queue: queue.max(1), window: window.max(1), losses, server_failures }
    }
}
