//! A thread of a team that runs replica 0 if the caller's thread is unsuitable.

use super::BroadcastPool;
use super::worker::{self, ThreadSettings, Worker};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A thread like those of the other replicas, which runs closures while their callers wait.
pub(super) struct OffloadThread {
    broadcast_pool: Arc<BroadcastPool>,
    _thread: Worker,
}

impl OffloadThread {
    /// Starts the thread with the given settings.
    ///
    /// # Errors
    /// Returns an I/O error if the system cannot start a thread.
    pub(super) fn start(settings: &ThreadSettings) -> io::Result<Self> {
        let broadcast_pool = Arc::new(BroadcastPool::new(1));
        let serves = broadcast_pool.clone();
        Ok(Self { broadcast_pool, _thread: Worker::start(0, settings, move || serves.serve(1))? })
    }

    /// Runs `work` on this thread and returns its result; `None` if the thread has not run it. If `work` panics, the
    /// caller's thread resumes the panic. There is no deadline here, because the calls in `work` have deadlines.
    pub(super) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Option<R> {
        let (work, result) = (Mutex::new(Some(work)), Mutex::new(None));
        let once = |rank| {
            if rank == 1
                && let Some(work) = lock(&work).take()
            {
                let made = work();
                worker::run_spawned_tasks();
                *lock(&result) = Some(made);
            }
        };
        self.broadcast_pool.broadcast(&once, Duration::MAX, &|| ());
        lock(&result).take()
    }
}

impl Drop for OffloadThread {
    fn drop(&mut self) {
        self.broadcast_pool.dismiss();
    }
}
