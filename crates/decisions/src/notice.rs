//! Notices to exit that this process or another worker has received.

use crate::departure::Departure;
use distribute_base::internal::lock;
use distribute_cluster::Stopwatch;
use std::sync::Mutex;

/// The state of a notice: whether this process has received one, and the decision of all workers.
#[derive(Debug, Default)]
pub struct Notice(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A stopwatch that this process started when it received the notice; `None` if it has received none.
    received: Option<Stopwatch>,
    decision: Option<NoticeDecision>,
}

/// The workers' decision about a notice that at least one of them received.
#[derive(Clone, Debug)]
pub struct NoticeDecision {
    /// The time since the notice. A worker that received the notice directly measures from that moment, the others from
    /// the decision.
    pub since: Stopwatch,
    /// The ranks of the workers that received the notice directly.
    pub workers: Vec<usize>,
    /// The workers that exit because of the notice.
    pub departure: Departure,
}

impl Notice {
    /// Records that this process received a notice. Returns `true` if it is the first one.
    pub fn receive(&self) -> bool {
        let mut state = lock(&self.0);
        let first = state.received.is_none();
        state.received.get_or_insert_with(Stopwatch::start);
        first
    }

    /// Returns `true` if this process has received a notice itself.
    pub fn is_received(&self) -> bool {
        lock(&self.0).received.is_some()
    }

    /// Records which workers have received a notice, by rank, and decides which exit. Has no effect if no worker has
    /// received one, or if there is already a decision. `min_remaining` is the minimum number of workers with which
    /// training can continue; `None` means that all are needed.
    pub fn record_decision(&self, received: impl Iterator<Item = bool>, min_remaining: Option<usize>) {
        let received: Vec<bool> = received.collect();
        let workers: Vec<usize> =
            received.iter().enumerate().filter_map(|(worker, received)| received.then_some(worker)).collect();
        let mut state = lock(&self.0);
        if workers.is_empty() || state.decision.is_some() {
            return;
        }
        let since = state.received.unwrap_or_else(Stopwatch::start);
        let departure = Departure::decide(&workers, received.len(), min_remaining);
        state.decision = Some(NoticeDecision { since, workers, departure });
    }

    /// Returns the ranks of the workers that exit while the others continue, according to the workers' decision. The
    /// list is empty if there is no decision, or if all workers exit.
    pub fn leaving(&self) -> Vec<usize> {
        let decision = self.decision().filter(|decision| decision.departure == Departure::Notified);
        decision.map(|decision| decision.workers).unwrap_or_default()
    }

    /// Discards the workers' decision after a rendezvous, because it was made for the previous workers. A worker that
    /// received a notice and continues reports the notice again.
    pub fn forget(&self) {
        lock(&self.0).decision = None;
    }

    /// Returns the workers' decision; `None` if none has been recorded, or it was discarded.
    pub fn decision(&self) -> Option<NoticeDecision> {
        lock(&self.0).decision.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_decision_counts_and_a_received_notice_alone_does_not() {
        let notice = Notice::default();
        notice.record_decision([false, false].into_iter(), Some(1));
        assert!(notice.decision().is_none() && !notice.is_received());
        assert!(notice.receive() && !notice.receive());
        assert!(notice.is_received() && notice.decision().is_none());
        notice.record_decision([false, false, true].into_iter(), Some(2));
        notice.record_decision([true, true, true].into_iter(), Some(2));
        assert_eq!((notice.decision().unwrap().workers, notice.leaving()), (vec![2], vec![2]));
        notice.forget();
        assert!(notice.decision().is_none() && notice.is_received(), "it is reported again");
        notice.record_decision([false, true].into_iter(), Some(2));
        assert_eq!((notice.decision().unwrap().workers, notice.leaving()), (vec![1], vec![]));
    }
}
