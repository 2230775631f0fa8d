//! The processes that have connected to a complete world and wait for the next one. This module contains only pure
//! functions and values.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time after which a process that has not connected again is removed. Waiting processes connect at least every
/// half second.
const GONE: Duration = Duration::from_secs(3);

/// The processes that wait for the next world, by position in the cluster. Times are relative to a fixed start.
#[derive(Debug, Default)]
pub struct WaitingProcesses {
    all: BTreeMap<usize, WaitingProcess>,
    /// The positions of the spares. The leader holds their connections.
    spares: BTreeSet<usize>,
    /// The generation that the members of the world claim, if it is later than the world's; otherwise 0.
    raised: u64,
}

#[derive(Debug)]
struct WaitingProcess {
    /// The generation of the last world of which the process was a member; 0 if there was none.
    generation: u64,
    at: Duration,
}

impl WaitingProcesses {
    /// Records that the process at this position has connected at the time `now`.
    pub fn record(&mut self, position: usize, generation: u64, now: Duration) {
        self.all.insert(position, WaitingProcess { generation, at: now });
    }

    /// Removes the processes that have not connected again in time.
    pub fn look(&mut self, now: Duration) {
        self.all.retain(|_, knock| now.saturating_sub(knock.at) < GONE);
    }

    /// Sets the positions of the spares.
    pub fn set_spares(&mut self, spares: BTreeSet<usize>) {
        self.spares = spares;
    }

    /// Adds the position of a spare that is being accepted.
    pub fn add_spare(&mut self, position: usize) {
        self.spares.insert(position);
    }

    /// Returns the positions of the spares.
    pub fn spares(&self) -> &BTreeSet<usize> {
        &self.spares
    }

    /// Returns the number of processes for which the group re-forms: all waiting processes except the spares.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the positions of the waiting processes, including the spares.
    pub fn positions(&self) -> BTreeSet<usize> {
        self.all.keys().copied().chain(self.spares.iter().copied()).collect()
    }

    /// Raises the generation that the members of the world claim: they continue from the state of another world, which
    /// was later.
    pub fn raise(&mut self, generation: u64) {
        self.raised = self.raised.max(generation);
    }

    /// Returns the generation that the members of the world of `generation` claim.
    pub fn raised(&self, generation: u64) -> u64 {
        self.raised.max(generation)
    }

    /// Returns whether another world has replaced the one of `generation`: a waiting process was a member of a
    /// different world, of the [claimed](Self::raised) generation or a later one.
    pub fn supplant(&self, generation: u64) -> bool {
        self.all.values().any(|knock| knock.generation >= self.raised(generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-43
    #[test]
    fn who_knocks_counts_once_and_who_stops_knocking_is_gone() {
        let (mut waiting_processes, second) = (WaitingProcesses::default(), Duration::from_secs(1));
        for (position, generation, now) in [(3, 0, 0), (1, 4, 1), (3, 0, 2)] {
            waiting_processes.record(position, generation, now * second);
        }
        waiting_processes.look(3 * second);
        assert_eq!((waiting_processes.count(), waiting_processes.positions()), (2, BTreeSet::from([1, 3])));
        assert!(waiting_processes.supplant(4) && !waiting_processes.supplant(5));
        waiting_processes.look(4 * second);
        assert_eq!(waiting_processes.positions(), BTreeSet::from([3]));
        assert!(!waiting_processes.supplant(1));
        waiting_processes.look(5 * second);
        assert_eq!(waiting_processes.count(), 0);
    }

    // INV-100
    #[test]
    fn spares_wait_without_re_forming_the_group() {
        let mut waiting_processes = WaitingProcesses::default();
        waiting_processes.set_spares([3, 4].into());
        waiting_processes.record(1, 0, Duration::ZERO);
        assert_eq!((waiting_processes.count(), waiting_processes.positions()), (1, [1, 3, 4].into()));
        waiting_processes.set_spares([4].into());
        assert_eq!(waiting_processes.positions(), [1, 4].into());
        assert!(!waiting_processes.supplant(1));
    }

    // INV-111
    #[test]
    fn a_world_that_continues_from_the_state_of_a_later_one_is_not_supplanted_by_an_earlier_one() {
        let mut waiting_processes = WaitingProcesses::default();
        waiting_processes.record(0, 50, Duration::ZERO);
        assert!(waiting_processes.supplant(1));
        waiting_processes.raise(52);
        assert!(!waiting_processes.supplant(1));
        assert_eq!((waiting_processes.raised(1), waiting_processes.raised(60)), (52, 60));
        waiting_processes.record(3, 52, Duration::ZERO);
        assert!(waiting_processes.supplant(1));
    }
}
