//! The reports of workers that have re-formed the group, and the choice of the state that the others receive.

// - **INV-101** A process that was a spare receives the state of another worker before it takes part in training, even
//   if no worker has taken part in training. In that case all others receive the same state, because they may have
//   built their models alone. Tests: `collective/src/recovery/report.rs`, `state_transfer.rs`,
//   `clusters/recovery/spares.rs`.

use super::Counters;
use serde::{Deserialize, Serialize};

/// A worker's report on its state. All workers exchange their reports after re-forming the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether the worker has taken part in training. The state of a worker that has just started is not needed by
    /// others.
    pub begun: bool,
    /// Whether the worker was a spare and has not received a state yet. Such a worker has created or restored its own
    /// state at another time than the others.
    pub spare: bool,
    /// The last generation in which the worker agreed with all others on a state; 0 if there was none. Workers with a
    /// later agreement take precedence, regardless of their progress.
    pub agreed: u64,
    /// The counters that show the worker's progress.
    pub counters: Counters,
    /// The reason why the worker's state is incomplete; `None` if it is complete. An incomplete state has only some of
    /// the updates of a step, or of those between two steps.
    pub torn: Option<String>,
    /// The number of logical replicas of a worker on which the workers had decided before; `None` if they had not, or
    /// if this worker does not know it.
    pub share: Option<Share>,
}

/// A decision of all workers that one of them has another number of logical replicas than an even share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The position of the worker in the cluster.
    pub position: usize,
    /// The number of its replicas.
    pub replicas: usize,
    /// The number of workers for which this was decided.
    pub workers: usize,
}

/// Returns the decision on shares if all workers report the same one, so that none of them is new. Otherwise shares are
/// even.
pub fn common_share(reports: &[Report]) -> Option<Share> {
    let first = reports.first()?.share.filter(|share| share.workers == reports.len())?;
    reports.iter().all(|report| report.share == Some(first)).then_some(first)
}

/// The decision that all workers derive from the same reports.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// No worker has taken part in training, and either none or all of them were spares. Each continues with the state
    /// that it has created or restored itself.
    Begin,
    /// The receivers, if there are any, replace their states by that of the source. All workers continue with the same
    /// counters.
    Transfer {
        /// The worker whose state is transferred.
        source: usize,
        /// The workers that receive the state.
        receivers: Vec<usize>,
        /// The counters from which all workers continue.
        counters: Counters,
    },
    /// No worker that has taken part in training has a complete state. The fields are the rank of one of these workers,
    /// and the reason why its state is incomplete.
    Torn(usize, String),
}

impl Report {
    fn rank(&self) -> (u64, (u64, u64)) {
        (self.agreed, self.counters.progress())
    }
}

/// Chooses the worker whose state the others receive. Among the workers with a complete state, this is the one with the
/// latest agreement, then the most progress, then the lowest rank.
///
/// If no worker has taken part in training, returns [`Decision::Begin`], unless some, but not all, were spares: then
/// all receive the state of the first worker that was not a spare. Returns [`Decision::Torn`] if only incomplete states
/// exist.
pub fn decide(reports: &[Report]) -> Decision {
    let begun = || reports.iter().enumerate().filter(|(_, report)| report.begun);
    let complete = begun().filter(|(_, report)| report.torn.is_none());
    let Some((source, furthest)) =
        complete.max_by_key(|(worker, report)| (report.rank(), usize::MAX - worker))
    else {
        return match begun().find_map(|(worker, report)| Some((worker, report.torn.clone()?))) {
            None => begin(reports),
            Some((worker, reason)) => Decision::Torn(worker, reason),
        };
    };
    let as_far =
        |_, report: &Report| report.begun && report.torn.is_none() && report.rank() == furthest.rank();
    transfer(reports, source, as_far)
}

/// Decides for workers none of which has taken part in training.
fn begin(reports: &[Report]) -> Decision {
    match reports.iter().position(|report| !report.spare) {
        // In all generations after the first, workers that have just started build their models alone, with other
        // initial values.
        Some(source) if reports.iter().any(|report| report.spare) => {
            transfer(reports, source, |worker, _| worker == source)
        }
        _ => Decision::Begin,
    }
}

/// Returns the decision to transfer the state of `source` to all workers that do not have it.
fn transfer(reports: &[Report], source: usize, has_it: impl Fn(usize, &Report) -> bool) -> Decision {
    let receivers = reports.iter().enumerate().filter(|(worker, report)| !has_it(*worker, report));
    let receivers = receivers.map(|(worker, _)| worker);
    // Some workers may have used numbers that others do not know. All continue with numbers that no worker has used.
    let latest =
        |of: fn(&Counters) -> u64| reports.iter().map(|report| of(&report.counters)).max().unwrap_or(0);
    let counters = Counters {
        max_in_step: latest(|counters| counters.max_in_step),
        max_between_steps: latest(|counters| counters.max_between_steps),
        variables: latest(|counters| counters.variables),
        optimizers: latest(|counters| counters.optimizers),
        ..reports.get(source).map(|report| report.counters).unwrap_or_default()
    };
    Decision::Transfer { source, receivers: receivers.collect(), counters }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-114
    #[test]
    fn shares_are_even_unless_all_workers_know_the_decision() {
        let share = Some(Share { position: 4, replicas: 1, workers: 3 });
        let report = |share| Report { share, ..at(1) };
        assert_eq!(common_share(&[report(share), report(share), report(share)]), share);
        let other = Some(Share { position: 4, replicas: 2, workers: 3 });
        for reports in [
            &[share, share, None][..],
            &[None, share, share],
            &[share, other, share],
            &[share, share],
            &[None],
            &[],
        ] {
            let reports: Vec<_> = reports.iter().map(|share| report(*share)).collect();
            assert_eq!(common_share(&reports), None, "{reports:?}");
        }
    }

    fn at(updates: u64) -> Report {
        let counters = Counters { updates, steps: updates, variables: 4, ..Counters::default() };
        Report { begun: true, spare: false, agreed: 3, counters, torn: None, share: None }
    }

    fn written(updates: u64, written: u64) -> Report {
        let report = at(updates);
        Report { counters: Counters { written, ..report.counters }, ..report }
    }

    fn started() -> Report {
        let counters = Counters { variables: 6, ..Counters::default() };
        Report { begun: false, spare: false, agreed: 0, counters, torn: None, share: None }
    }

    fn spare() -> Report {
        Report { spare: true, ..started() }
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
            (vec![at(7), spare(), at(7)], take(0, &[1])),
            (vec![started(), at(7), at(8)], take(2, &[0, 1])),
            (vec![at(0), started()], take(0, &[1])),
            (vec![at(3), at(3)], take(0, &[])),
            (vec![torn(9), at(8), started()], take(1, &[0, 2])),
            (vec![written(7, 3), written(7, 4), started()], take(1, &[0, 2])),
            (vec![written(6, 9), at(7)], take(1, &[0])),
            // The others have continued without one worker.
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

    // INV-101
    #[test]
    fn all_have_the_same_state_if_one_was_a_spare_and_all_others_have_just_started() {
        let receivers = |reports: &[Report]| match decide(reports) {
            Decision::Transfer { source, receivers, counters } => {
                assert_eq!(counters.steps, reports[source].counters.steps);
                Some((source, receivers))
            }
            _ => None,
        };
        // The others have restored a later checkpoint.
        let restored = Report { begun: false, ..at(6) };
        let restored = |spare| Report { spare, agreed: 0, ..restored.clone() };
        assert_eq!(receivers(&[restored(false), spare(), restored(false)]), Some((0, vec![1, 2])));
        assert_eq!(receivers(&[spare(), restored(false), spare()]), Some((1, vec![0, 2])));
        assert_eq!(receivers(&[restored(false), started()]), None);
        assert_eq!(receivers(&[spare(), spare()]), None);
    }
}
