//! A thread for runs whose caller's thread is unsuitable for replica 0.

use super::Crew;
use super::worker::{self, Kind, Worker};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A thread like those of the other replicas, which works for a caller that waits.
pub(super) struct Host {
    crew: Arc<Crew>,
    _worker: Worker,
}

impl Host {
    /// # Errors
    /// An error of the system, if it refuses a thread.
    pub(super) fn start(kind: &Kind) -> io::Result<Self> {
        let crew = Arc::new(Crew::new(1));
        let serves = crew.clone();
        Ok(Self { crew, _worker: Worker::start(0, kind, move || serves.serve(1))? })
    }

    /// Runs `work` on this host's thread and returns its result; a panic is resumed here.
    ///
    /// There is no deadline, because `work` has its own.
    pub(super) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Option<R> {
        let (work, result) = (Mutex::new(Some(work)), Mutex::new(None));
        let once = |rank| {
            if rank == 1
                && let Some(work) = lock(&work).take()
            {
                let made = work();
                worker::do_spawned();
                *lock(&result) = Some(made);
            }
        };
        self.crew.broadcast(&once, Duration::MAX, &|| ());
        lock(&result).take()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.crew.dismiss();
    }
}
