//! The transport whose workers are threads of this process, for tests, examples and first experiments.

use crate::{Drive, Message, Receiver, Transport};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Gives messages to the receivers of other workers, on the thread that sends them.
pub struct Memory {
    worker: usize,
    receivers: Arc<Vec<Arc<dyn Receiver>>>,
    /// Held while a message of this worker is delivered, so that none comes after its end.
    closed: Mutex<bool>,
    /// For each worker, whether it has ended.
    ended: Arc<Vec<AtomicBool>>,
}

/// The transports of workers whose messages go to these receivers, by worker.
///
/// A worker is lost to the others when its transport is closed or dropped.
pub fn transports(receivers: Vec<Arc<dyn Receiver>>) -> Vec<Memory> {
    let ended = Arc::new(receivers.iter().map(|_| AtomicBool::new(false)).collect::<Vec<_>>());
    let receivers = Arc::new(receivers);
    let memory = |worker| Memory {
        worker,
        receivers: receivers.clone(),
        closed: Mutex::new(false),
        ended: ended.clone(),
    };
    (0..receivers.len()).map(memory).collect()
}

impl Transport for Memory {
    fn send(&self, to: usize, message: Message) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = |worker: usize| self.ended.get(worker).is_none_or(|ended| ended.load(Ordering::Acquire));
        if let Some(receiver) = self.receivers.get(to)
            && to != self.worker
            && !*closed
            && !ended(to)
        {
            receiver.deliver(self.worker, message);
        }
    }

    fn drive(&self, _patience: Duration) -> Drive {
        Drive::Elsewhere
    }

    fn close(&self) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *closed, true) {
            return;
        }
        if let Some(ended) = self.ended.get(self.worker) {
            ended.store(true, Ordering::Release);
        }
        for (_, receiver) in self.receivers.iter().enumerate().filter(|(worker, _)| *worker != self.worker) {
            receiver.lose(self.worker, crate::ENDED.to_owned());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} of {})", self.worker, self.receivers.len())
    }
}
