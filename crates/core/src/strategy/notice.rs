//! Whether this process has been told to end, and whether all workers know.

use crate::strategy::departure::Departure;
use distribute_base::internal::lock;
use distribute_cluster::Stopwatch;
use std::sync::Mutex;

/// What a strategy knows of a notice: one that this process got, and one that all workers have heard of.
#[derive(Debug, Default)]
pub struct Notice(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When this process got it.
    given: Option<Stopwatch>,
    heard: Option<Heard>,
}

/// A notice that all workers know of.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Since when: of workers that got it themselves, since then.
    pub since: Stopwatch,
    /// Those that got it.
    pub workers: Vec<usize>,
    /// Who ends because of it.
    pub departure: Departure,
}

impl Notice {
    /// This process got one. Returns whether that is the first.
    pub fn give(&self) -> bool {
        let mut state = lock(&self.0);
        let first = state.given.is_none();
        state.given.get_or_insert_with(Stopwatch::start);
        first
    }

    /// Whether this process got one.
    pub fn is_given(&self) -> bool {
        lock(&self.0).given.is_some()
    }

    /// All workers have said whether they got one. That is heard once. `least` is the number of workers with which the others go
    /// on; `None` if they need all.
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

    /// The workers that end while the others go on, as all have heard.
    pub fn leaving(&self) -> Vec<usize> {
        let heard = self.heard().filter(|heard| heard.departure == Departure::Told);
        heard.map(|heard| heard.workers).unwrap_or_default()
    }

    /// Forgets what all have heard: not all of those are there any more. Who got one says so again.
    pub(crate) fn forget(&self) {
        lock(&self.0).heard = None;
    }

    /// The decision on which the workers have agreed, if a notice was given.
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
