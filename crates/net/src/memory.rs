//! A transport between threads of this process, for tests, examples and experiments.

use crate::{Message, PollOutcome, Receiver, Transport};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A transport that delivers each message to the receiver of the other worker, on the sending thread.
pub struct Memory {
    worker: usize,
    receivers: Arc<Vec<Arc<dyn Receiver>>>,
    /// Whether each worker has closed its transport.
    ended: Arc<Vec<AtomicBool>>,
}

/// Creates connected transports, one for each receiver. Worker i receives at `receivers[i]`.
///
/// When a transport is closed or dropped, its worker is reported as disconnected to the others.
pub fn transports(receivers: Vec<Arc<dyn Receiver>>) -> Vec<Memory> {
    let ended = Arc::new(receivers.iter().map(|_| AtomicBool::new(false)).collect::<Vec<_>>());
    let receivers = Arc::new(receivers);
    let memory = |worker| Memory { worker, receivers: receivers.clone(), ended: ended.clone() };
    (0..receivers.len()).map(memory).collect()
}

impl Transport for Memory {
    fn send(&self, to: usize, message: Message) {
        let ended = |worker: usize| self.ended.get(worker).is_none_or(|ended| ended.load(Ordering::Acquire));
        if let Some(receiver) = self.receivers.get(to)
            && to != self.worker
            && !ended(self.worker)
            && !ended(to)
        {
            receiver.deliver(self.worker, message);
        }
    }

    fn poll(&self, _patience: Duration, _is_there: &dyn Fn() -> bool) -> PollOutcome {
        PollOutcome::Never
    }

    fn close(&self) {
        if self.ended.get(self.worker).is_none_or(|ended| ended.swap(true, Ordering::AcqRel)) {
            return;
        }
        for (_, receiver) in self.receivers.iter().enumerate().filter(|(worker, _)| *worker != self.worker) {
            receiver.mark_lost(self.worker, crate::ENDED.to_owned());
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
