//! Sums that are computed by NCCL, with their timeout.

use crate::library::Library;
use bytes::Bytes;
use distribute_collective::group::Group;
use distribute_net::polling::poll_until;
use distribute_net::{NativeSum, Number};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The sums of a group, computed by NCCL.
pub(crate) struct Sums<L> {
    library: Mutex<L>,
    /// The group, which detects failed workers.
    group: Group,
    /// Whether a sum has failed on this worker, after which the communicator no longer exists.
    broken: AtomicBool,
}

impl<L: Library> Sums<L> {
    /// Creates the sums for a library whose workers are linked.
    pub fn new(library: L, group: Group) -> Self {
        Self { library: Mutex::new(library), group, broken: AtomicBool::new(false) }
    }

    fn library(&self) -> MutexGuard<'_, L> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self, vector: &[u8], number: Number, patience: Duration) -> Result<Vec<u8>, String> {
        let mut library = self.library();
        library.begin(vector, number).map_err(|error| error.to_string())?;
        let late = || format!("not all workers have arrived within {:.1} s", patience.as_secs_f64());
        poll_until(patience, || match library.sum() {
            Ok(Some(sum)) => Some(Ok(sum)),
            Ok(None) => self.group.first_lost().map(|worker| Err(format!("worker {worker} was lost"))),
            Err(error) => Some(Err(error.to_string())),
        })
        .unwrap_or_else(|| Err(late()))
    }
}

impl<L: Library> NativeSum for Sums<L> {
    fn name(&self) -> &'static str {
        "NCCL"
    }

    fn supports(&self, bytes: usize) -> bool {
        !self.broken.load(Ordering::Relaxed) && bytes > 0 && bytes <= self.library().room()
    }

    fn sum(&self, vector: Bytes, number: Number, patience: Duration) -> Result<Bytes, String> {
        let sum = self.made(&vector, number, patience);
        if sum.is_err() {
            // This also ends the sums that others still wait for.
            self.broken.store(true, Ordering::Relaxed);
            self.library().abort();
        }
        sum.map(Bytes::from)
    }
}
