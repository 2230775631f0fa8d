//! The reports of workers when the group has re-formed, and the choice of the state that is transferred.

use super::Counters;
use serde::{Deserialize, Serialize};

/// A worker's report on its state. All workers exchange reports after they have re-formed the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether the worker has taken part in training. A worker that has just started has no state that others need.
    pub begun: bool,
    /// The last generation in which the worker agreed with all others on a state; 0 if there is none. A worker with a
    /// later agreement takes precedence, however far this worker has progressed since.
    pub agreed: u64,
    /// The counters of the worker, which show its progress.
    pub counters: Counters,
    /// The reason why the worker's state is incomplete; `None` if it is complete. A state is incomplete if only some of
    /// the updates of a step, or of those between two steps, were applied.
    pub torn: Option<String>,
}

/// The decision that follows from the reports of all workers. It is the same on each of them.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// No worker has taken part in training: each continues with the state that it has created or restored itself.
    Begin,
    /// The receivers, if any, replace their states with the state of the source. All workers continue with the same
    /// counters.
    Transfer {
        /// The worker whose state is transferred.
        source: usize,
        /// The workers that receive the state.
        receivers: Vec<usize>,
        /// The counters from which all workers continue.
        counters: Counters,
    },
    /// None of the workers that have taken part in training has a complete state. The variant contains the index of a
    /// worker, and the reason why its state is incomplete.
    Torn(usize, String),
}

impl Report {
    fn rank(&self) -> (u64, (u64, u64)) {
        (self.agreed, self.counters.progress())
    }
}

/// Chooses the worker whose state the others receive. Among the workers with a complete state, this is the one with the
/// latest agreement, then the most progress, then the lowest rank. Returns [`Decision::Begin`] if no worker has taken
/// part in training, and [`Decision::Torn`] if none of those that have has a complete state.
pub fn decide(reports: &[Report]) -> Decision {
    let begun = || reports.iter().enumerate().filter(|(_, report)| report.begun);
    let complete = begun().filter(|(_, report)| report.torn.is_none());
    let Some((source, furthest)) =
        complete.max_by_key(|(worker, report)| (report.rank(), usize::MAX - worker))
    else {
        return match begun().find_map(|(worker, report)| Some((worker, report.torn.clone()?))) {
            None => Decision::Begin,
            Some((worker, reason)) => Decision::Torn(worker, reason),
        };
    };
    let as_far = |report: &Report| report.begun && report.torn.is_none() && report.rank() == furthest.rank();
    let receivers =
        reports.iter().enumerate().filter(|(_, report)| !as_far(report)).map(|(worker, _)| worker);
    // Of what some have made and dropped again, others don't know: numbers that nobody has used are the same for all.
    let latest =
        |of: fn(&Counters) -> u64| reports.iter().map(|report| of(&report.counters)).max().unwrap_or(0);
    let counters = Counters {
        max_in_step: latest(|counters| counters.max_in_step),
        max_between_steps: latest(|counters| counters.max_between_steps),
        variables: latest(|counters| counters.variables),
        optimizers: latest(|counters| counters.optimizers),
        ..furthest.counters
    };
    Decision::Transfer { source, receivers: receivers.collect(), counters }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(updates: u64) -> Report {
        let counters = Counters { updates, steps: updates, variables: 4, ..Counters::default() };
        Report { begun: true, agreed: 3, counters, torn: None }
    }

    fn written(updates: u64, written: u64) -> Report {
        let report = at(updates);
        Report { counters: Counters { written, ..report.counters }, ..report }
    }

    fn started() -> Report {
        let counters = Counters { variables: 6, ..Counters::default() };
        Report { begun: false, agreed: 0, counters, torn: None }
    }

    fn torn(updates: u64) -> Report {
        Report { torn: Some("half a step".into()), ..at(updates) }
    }

    // INV-42
    #[test]
    fn who_is_behind_or_has_just_started_takes_over_the_state_of_the_furthest() {
        let take = |source, receivers: &[usize]| Some((source, receivers.to_vec()));
        for (reports, decision) in [
            (vec![started(), started()], None),
            (vec![at(7), started(), at(7)], take(0, &[1])),
            (vec![started(), at(7), at(8)], take(2, &[0, 1])),
            (vec![at(0), started()], take(0, &[1])),
            (vec![at(3), at(3)], take(0, &[])),
            (vec![torn(9), at(8), started()], take(1, &[0, 2])),
            (vec![written(7, 3), written(7, 4), started()], take(1, &[0, 2])),
            (vec![written(6, 9), at(7)], take(1, &[0])),
            // The others have gone on without it.
            (vec![at(7), Report { agreed: 2, ..at(9) }, at(7)], take(0, &[1])),
            (vec![Report { agreed: 2, ..at(7) }, at(7)], take(1, &[0])),
        ] {
            let decided = match decide(&reports) {
                Decision::Transfer { source, receivers, counters } => {
                    let steps = reports[source].counters.steps;
                    let variables = reports.iter().map(|report| report.counters.variables).max().unwrap();
                    assert_eq!((counters.steps, counters.variables), (steps, variables), "{reports:?}");
                    Some((source, receivers))
                }
                Decision::Begin => None,
                torn => panic!("{torn:?} of {reports:?}"),
            };
            assert_eq!(decided, decision, "{reports:?}");
        }
        assert_eq!(decide(&[torn(9), started()]), Decision::Torn(0, "half a step".into()));
    }
}
