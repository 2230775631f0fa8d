//! The notice to exit that this process or another worker received.

use crate::strategy::departure::Departure;
use distribute_base::internal::lock;
use distribute_cluster::Stopwatch;
use std::sync::Mutex;

/// The state of a notice: whether this process received one, and the decision of all workers.
#[derive(Debug, Default)]
pub struct Notice(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The time since this process received it.
    given: Option<Stopwatch>,
    heard: Option<Heard>,
}

/// A notice that all workers have received.
#[derive(Clone, Debug)]
pub struct Heard {
    /// The time since the notice: for a worker that received it first-hand, since that moment.
    pub since: Stopwatch,
    /// The workers that received it first-hand.
    pub workers: Vec<usize>,
    /// The workers that exit because of it.
    pub departure: Departure,
}

impl Notice {
    /// Records that this process received a notice. Returns whether it is the first.
    pub fn give(&self) -> bool {
        let mut state = lock(&self.0);
        let first = state.given.is_none();
        state.given.get_or_insert_with(Stopwatch::start);
        first
    }

    /// Whether this process received a notice.
    pub fn is_given(&self) -> bool {
        lock(&self.0).given.is_some()
    }

    /// Records, once, which workers received a notice. `least` is the number of workers that suffices for the
    /// others to continue; `None` if all are needed.
    pub fn hear(&self, given: impl Iterator<Item = bool>, least: Option<usize>) {
        let given: Vec<bool> = given.collect();
        let workers: Vec<usize> =
            given.iter().enumerate().filter_map(|(worker, given)| given.then_some(worker)).collect();
        let mut state = lock(&self.0);
        if workers.is_empty() || state.heard.is_some() {
            return;
        }
        let since = state.given.unwrap_or_else(Stopwatch::start);
        let departure = Departure::decide(&workers, given.len(), least);
        state.heard = Some(Heard { since, workers, departure });
    }

    /// Returns the workers that exit while the others continue, by the decision of all.
    pub fn leaving(&self) -> Vec<usize> {
        let heard = self.heard().filter(|heard| heard.departure == Departure::Told);
        heard.map(|heard| heard.workers).unwrap_or_default()
    }

    /// Forgets the decision of all workers, because some of them have left. A worker that received a notice
    /// reports it again.
    pub(crate) fn forget(&self) {
        lock(&self.0).heard = None;
    }

    /// Returns the decision on which the workers have agreed, if a notice was given.
    pub fn heard(&self) -> Option<Heard> {
        lock(&self.0).heard.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_have_heard_first_counts_and_a_notice_of_ones_own_alone_does_not() {
        let notice = Notice::default();
        notice.hear([false, false].into_iter(), Some(1));
        assert!(notice.heard().is_none() && !notice.is_given());
        assert!(notice.give() && !notice.give());
        assert!(notice.is_given() && notice.heard().is_none());
        notice.hear([false, false, true].into_iter(), Some(2));
        notice.hear([true, true, true].into_iter(), Some(2));
        assert_eq!((notice.heard().unwrap().workers, notice.leaving()), (vec![2], vec![2]));
        notice.forget();
        assert!(notice.heard().is_none() && notice.is_given(), "it is said again");
        notice.hear([false, true].into_iter(), Some(2));
        assert_eq!((notice.heard().unwrap().workers, notice.leaving()), (vec![1], vec![]));
    }
}
