//! The report of each worker when the group has re-formed, and the choice of the state that others receive.

use super::Numbers;
use serde::{Deserialize, Serialize};

/// The report of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether it has been part of the training: one that has just started has nothing that others need.
    pub begun: bool,
    /// The generation in which it has agreed with all others on a state last, or 0: what others have agreed on without
    /// it since then counts more, however far it has come.
    pub agreed: u64,
    /// Its counters.
    pub numbers: Numbers,
    /// The reason why it cannot continue, if so.
    pub torn: Option<String>,
}

/// The decision from the reports of all workers, the same on each.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// No worker has begun: all continue from what they have built or restored themselves.
    Begin,
    /// These workers, by number, take over the state of worker `source`; there may be none. All count on from these
    /// numbers.
    TakeOver {
        /// The worker whose state is transferred.
        source: usize,
        /// The workers that receive it.
        takers: Vec<usize>,
        /// From which numbers all count on.
        numbers: Numbers,
    },
    /// No worker has a complete state, for this reason of the worker.
    Torn(usize, String),
}

impl Report {
    fn standing(&self) -> (u64, (u64, u64)) {
        (self.agreed, self.numbers.progress())
    }
}

/// Decides whose state the others receive: that of the furthest worker among those that agreed last, and of the first
/// of these.
pub fn decide(reports: &[Report]) -> Decision {
    let begun = || reports.iter().enumerate().filter(|(_, report)| report.begun);
    let whole = begun().filter(|(_, report)| report.torn.is_none());
    let Some((source, furthest)) =
        whole.max_by_key(|(worker, report)| (report.standing(), usize::MAX - worker))
    else {
        return match begun().find_map(|(worker, report)| Some((worker, report.torn.clone()?))) {
            None => Decision::Begin,
            Some((worker, reason)) => Decision::Torn(worker, reason),
        };
    };
    let as_far =
        |report: &Report| report.begun && report.torn.is_none() && report.standing() == furthest.standing();
    let takers = reports.iter().enumerate().filter(|(_, report)| !as_far(report)).map(|(worker, _)| worker);
    // Of what some have made and dropped again, others don't know: numbers that nobody has used are the same for all.
    let latest =
        |of: fn(&Numbers) -> u64| reports.iter().map(|report| of(&report.numbers)).max().unwrap_or(0);
    let numbers = Numbers {
        most: latest(|numbers| numbers.most),
        most_between: latest(|numbers| numbers.most_between),
        variables: latest(|numbers| numbers.variables),
        optimizers: latest(|numbers| numbers.optimizers),
        ..furthest.numbers
    };
    Decision::TakeOver { source, takers: takers.collect(), numbers }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(updates: u64) -> Report {
        let numbers = Numbers { updates, steps: updates, variables: 4, ..Numbers::default() };
        Report { begun: true, agreed: 3, numbers, torn: None }
    }

    fn written(updates: u64, written: u64) -> Report {
        let report = at(updates);
        Report { numbers: Numbers { written, ..report.numbers }, ..report }
    }

    fn started() -> Report {
        let numbers = Numbers { variables: 6, ..Numbers::default() };
        Report { begun: false, agreed: 0, numbers, torn: None }
    }

    fn torn(updates: u64) -> Report {
        Report { torn: Some("half a step".into()), ..at(updates) }
    }

    // INV-42
    #[test]
    fn who_is_behind_or_has_just_started_takes_over_the_state_of_the_furthest() {
        let take = |source, takers: &[usize]| Some((source, takers.to_vec()));
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
                Decision::TakeOver { source, takers, numbers } => {
                    let steps = reports[source].numbers.steps;
                    let variables = reports.iter().map(|report| report.numbers.variables).max().unwrap();
                    assert_eq!((numbers.steps, numbers.variables), (steps, variables), "{reports:?}");
                    Some((source, takers))
                }
                Decision::Begin => None,
                torn => panic!("{torn:?} of {reports:?}"),
            };
            assert_eq!(decided, decision, "{reports:?}");
        }
        assert_eq!(decide(&[torn(9), started()]), Decision::Torn(0, "half a step".into()));
    }
}
