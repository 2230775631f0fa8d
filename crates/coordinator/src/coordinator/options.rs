//! The settings of a coordinator.

use crate::dispatch::Limits;
use std::time::Duration;

/// The settings of a [`Coordinator`](super::Coordinator).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The maximum time for which methods wait while no worker is connected; 60 s by default.
    pub timeout: Duration,
    /// The maximum time for which [`Coordinator::new`](super::Coordinator::new) waits until all workers have answered;
    /// 60 s by default.
    pub join_timeout: Duration,
    /// The maximum running time of a closure, and of the creation of a resource; 10 minutes by default. Beyond it, the
    /// closure or the creation fails, and the worker is disconnected until it answers again.
    pub closure_timeout: Duration,
    /// The maximum time for which a closure may continue to run after it was cancelled; 10 s by default. Beyond it, the
    /// closure counts as ended, and its worker is disconnected until it answers again.
    pub cancel_timeout: Duration,
    /// The maximum number of closures that wait for a worker; 262,144 by default. If the queue is full,
    /// scheduling blocks.
    pub queue: usize,
    /// The maximum number of closures that are assigned to a worker at a time, including the running one; 16 by
    /// default. A worker is assigned several only if closures are short and many are queued.
    pub window: usize,
    /// The maximum number of times that a closure is retried because its worker disconnected; 5 by default.
    pub losses: u32,
    /// The maximum number of times that a closure is retried because a parameter server did not answer; 2 by default.
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
