//! A thread that a run goes to, where the caller's own is none for replica 0.

use super::Crew;
use super::worker::{self, Kind, Worker};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A thread like those of the other replicas, on which a caller has something done while it waits.
pub(super) struct Host {
    crew: Arc<Crew>,
    _worker: Worker,
}

impl Host {
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn start(kind: &Kind) -> io::Result<Self> {
        let crew = Arc::new(Crew::new(1));
        let serves = crew.clone();
        Ok(Self { crew, _worker: Worker::start(0, kind, move || serves.serve(1))? })
    }

    /// Does `work` on this host's thread, and returns when it is done; a panic is resumed here.
    ///
    /// There is no deadline here: what is done there has its own.
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
