//! Where each worker stands when all have met, and whose state the others take over: pure.

use serde::{Deserialize, Serialize};

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Whether it has been part of the training: one that has just started has nothing that others need.
    pub begun: bool,
    /// How many updates all of its optimizers have made.
    pub updates: u64,
    /// How many steps its strategy has made.
    pub steps: u64,
    /// Why it cannot go on from where it stands, if so.
    pub torn: Option<String>,
}

/// What follows from the reports of all workers, the same on each.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nobody has begun: all go on from what they have made or restored by themselves.
    Begin,
    /// These workers, by number, take over the state of worker `source`; there may be none.
    TakeOver { source: usize, takers: Vec<usize> },
    /// Nobody's state is whole, for this reason of the worker.
    Torn(usize, String),
}

/// Whose state the others take over: that of the worker which is furthest, and the first of those.
pub(super) fn decide(reports: &[Report]) -> Decision {
    let begun = || reports.iter().enumerate().filter(|(_, report)| report.begun);
    let whole = begun().filter(|(_, report)| report.torn.is_none());
    let Some((source, furthest)) = whole.max_by_key(|(worker, report)| (report.updates, usize::MAX - worker))
    else {
        return match begun().find_map(|(worker, report)| Some((worker, report.torn.clone()?))) {
            None => Decision::Begin,
            Some((worker, reason)) => Decision::Torn(worker, reason),
        };
    };
    let as_far =
        |report: &Report| report.begun && report.torn.is_none() && report.updates == furthest.updates;
    let takers = reports.iter().enumerate().filter(|(_, report)| !as_far(report)).map(|(worker, _)| worker);
    Decision::TakeOver { source, takers: takers.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(updates: u64) -> Report {
        Report { begun: true, updates, steps: updates, torn: None }
    }

    fn started() -> Report {
        Report { begun: false, ..at(0) }
    }

    fn torn(updates: u64) -> Report {
        Report { torn: Some("half a step".into()), ..at(updates) }
    }

    // INV-42
    #[test]
    fn who_is_behind_or_has_just_started_takes_over_the_state_of_the_furthest() {
        let take = |source, takers: &[usize]| Decision::TakeOver { source, takers: takers.to_vec() };
        for (reports, decision) in [
            (vec![started(), started()], Decision::Begin),
            (vec![at(7), started(), at(7)], take(0, &[1])),
            (vec![started(), at(7), at(8)], take(2, &[0, 1])),
            (vec![at(0), started()], take(0, &[1])),
            (vec![at(3), at(3)], take(0, &[])),
            (vec![torn(9), at(8), started()], take(1, &[0, 2])),
            (vec![torn(9), started()], Decision::Torn(0, "half a step".into())),
        ] {
            assert_eq!(decide(&reports), decision, "{reports:?}");
        }
    }
}
