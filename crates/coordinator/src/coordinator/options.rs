//! The settings of a coordinator.

use crate::dispatch::Limits;
use std::time::Duration;

/// The settings of a [`Coordinator`](super::Coordinator).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time that calls wait for workers to reconnect; 60 s by default.
    pub timeout: Duration,
    /// The time to wait until all workers have answered for the first time; 60 s by default.
    pub join_timeout: Duration,
    /// The maximum running time of a closure; 10 minutes by default. After that the closure fails, and its
    /// worker is disconnected until it answers again.
    pub closure_timeout: Duration,
    /// The time that a closure may still run after it was cancelled; 10 s by default. After that it counts as
    /// ended, and its worker is disconnected until it answers again.
    pub cancel_timeout: Duration,
    /// The maximum number of closures that wait for a worker; 262,144 by default. If the queue is full,
    /// scheduling blocks.
    pub queue: usize,
    /// The maximum number of closures of a worker, including the running one, if closures are short and many
    /// are queued; 16 by default.
    pub window: usize,
    /// The number of times a closure is retried because its worker disconnected; 5 by default.
    pub losses: u32,
    /// The number of times a closure is retried because a parameter server did not answer; 2 by default.
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
