//! Decides whether a spare takes the place of a straggler, or the straggler gets fewer replicas.

// - INV-113: only the worker that leads the rendezvous proposes a replacement, because it knows the spares. No worker
//   compares floating-point numbers that another one has computed. Tests: `decisions/src/remedy.rs`,
//   `clusters/recovery/replaced.rs`, `simulation/tests/it/scenarios.rs`.
// - INV-114: only the chief proposes other shares. Tests: `decisions/src/remedy.rs`,
//   `collective/src/recovery/report.rs`, `clusters/recovery/shares.rs`.

use crate::stragglers::{Straggler, StragglerCause, WorkerTimes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// The reaction to a worker that makes the others wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StragglerPolicy {
    /// The chief logs a warning.
    #[default]
    Warn,
    /// The chief logs a warning, and a waiting spare takes the place of the worker.
    Replace {
        /// The time for which the worker must have been the straggler. It begins when the straggler is found, which
        /// needs at least 10 s of steps.
        after: Duration,
    },
    /// The chief logs a warning, and the worker gets fewer logical replicas, in proportion to its speed.
    Rebalance {
        /// The time for which the worker must have been the straggler, as in [`Replace`](Self::Replace).
        after: Duration,
    },
}

/// A remedy for a slow worker, before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// The rank of the slow worker.
    pub worker: usize,
    /// The reason why a worker is slow.
    pub cause: StragglerCause,
    /// The number of logical replicas that the worker has from now on; `None` if a spare takes its place.
    pub replicas: Option<usize>,
}

/// The facts from which a worker decides whether to propose a remedy.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The straggler, and the time for which it has been the straggler.
    pub straggler: Option<(Straggler, Duration)>,
    /// The rank of the worker that decides.
    pub me: usize,
    /// The position in the cluster of each worker, by rank.
    pub positions: &'a [usize],
    /// The number of replicas of each worker, by rank.
    pub replicas: &'a [usize],
    /// The mean times of each worker in a step, by rank.
    pub times: &'a [WorkerTimes],
    /// The positions in the cluster of the spares that wait. Only the worker that leads the rendezvous knows them.
    pub spares: &'a BTreeSet<usize>,
}

/// The remedies that this process has seen.
#[derive(Debug, Default)]
pub struct Remedies {
    /// The number of replacements.
    count: u64,
    /// The positions in the cluster of the workers that were replaced.
    replaced: BTreeSet<usize>,
    /// The cause of the last replacement, and the positions of the workers before it.
    last: Option<(StragglerCause, Vec<usize>)>,
}

impl Remedies {
    /// Decides whether this worker proposes a remedy.
    pub fn propose(&self, policy: StragglerPolicy, facts: Facts<'_>) -> Option<Remedy> {
        match policy {
            StragglerPolicy::Warn => None,
            StragglerPolicy::Replace { after } => self.propose_replacement(after, facts),
            StragglerPolicy::Rebalance { after } => propose_share(after, facts),
        }
    }

    /// Decides whether this worker proposes to replace the straggler.
    ///
    /// A spare can take the place if it would not be slow for the same reason. So the result is `None` in these cases:
    /// - The program takes longer between the steps, or the worker computes longer and has more replicas than another.
    /// - The straggler is new since the last replacement, which had the same cause: a change of the machine did not
    ///   help.
    /// - The spare that comes first was itself replaced.
    ///
    /// The chief and the worker that leads the rendezvous are never replaced.
    fn propose_replacement(&self, after: Duration, facts: Facts<'_>) -> Option<Remedy> {
        let (Straggler { worker, cause, .. }, since) = facts.straggler?;
        let (spare, position) = (facts.spares.first()?, facts.positions.get(worker)?);
        let least = facts.replicas.iter().min();
        let follows_machine = match cause {
            StragglerCause::Input | StragglerCause::Processor | StragglerCause::Link => true,
            StragglerCause::Computing => facts.replicas.get(worker) == least,
            StragglerCause::Outside => false,
        };
        let helped =
            self.last.as_ref().is_none_or(|(last, before)| *last != cause || before.contains(position));
        let is_replaceable = worker != 0 && worker != facts.me;
        let is_due = since >= after && follows_machine && helped && !self.replaced.contains(spare);
        (is_due && is_replaceable).then_some(Remedy { worker, cause, replicas: None })
    }

    /// Records a remedy in the world whose workers have these positions in the cluster, by rank.
    pub fn record(&mut self, remedy: Remedy, positions: &[usize]) {
        if remedy.replicas.is_some() {
            return;
        }
        self.count += 1;
        self.replaced.extend(positions.get(remedy.worker));
        self.last = Some((remedy.cause, positions.to_vec()));
    }

    /// Returns the number of replacements that this process has seen.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// The minimum ratio of the present time of a step to that with other shares, for which shares are changed.
const MIN_GAIN: f64 = 1.1;

/// Decides whether the chief proposes another share of the logical replicas for the slowest worker.
///
/// With `k` replicas, a worker needs `k` times as long as with one. The number is chosen with which the slowest worker
/// of the next steps is fastest. Only times of computing count: the others do not depend on the number of replicas.
fn propose_share(after: Duration, facts: Facts<'_>) -> Option<Remedy> {
    let Facts { straggler, me, replicas, times, .. } = facts;
    let (straggler, since) = straggler?;
    let cause = straggler.cause;
    let is_curable = matches!(cause, StragglerCause::Computing | StragglerCause::Processor);
    if me != 0 || since < after || !is_curable || replicas.len() != times.len() {
        return None;
    }
    let each: Vec<_> =
        times.iter().zip(replicas).map(|(times, count)| times.computing / (*count).max(1) as f64).collect();
    let (worker, slowest) = each.iter().copied().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let others = each.iter().enumerate().filter(|(other, _)| *other != worker).map(|(_, time)| *time);
    let (other, total) = (others.reduce(f64::max)?, replicas.iter().sum::<usize>());
    let now = each.iter().zip(replicas).map(|(time, count)| time * *count as f64).fold(0., f64::max);
    let with = |share: usize| {
        let most = total.saturating_sub(share).div_ceil(replicas.len() - 1);
        (share as f64 * slowest).max(most as f64 * other)
    };
    // Of equal ones, the share that is closest to an even one.
    let shares = (1..=total / replicas.len()).rev();
    let (share, time) = shares.map(|share| (share, with(share))).min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let is_other = replicas.get(worker) != Some(&share) && now >= MIN_GAIN * time;
    is_other.then_some(Remedy { worker, cause, replicas: Some(share) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(60);
    const REPLACE: StragglerPolicy = StragglerPolicy::Replace { after: AFTER };

    fn straggler(worker: usize, cause: StragglerCause) -> Straggler {
        Straggler { worker, cause, seconds_per_step: 0.1, share: 0.5 }
    }

    /// Returns whether worker 0 proposes to replace a worker of a world with the given positions.
    fn proposes(
        replacements: &Remedies,
        (worker, cause): (usize, StragglerCause),
        positions: &[usize],
        spares: &[usize],
    ) -> bool {
        let spares = spares.iter().copied().collect();
        let replicas = vec![1; positions.len()];
        let straggler = Some((straggler(worker, cause), AFTER));
        let facts = Facts { straggler, me: 0, positions, replicas: &replicas, times: &[], spares: &spares };
        let proposed = replacements.propose(REPLACE, facts);
        assert!(proposed.is_none_or(|proposed| proposed == Remedy { worker, cause, replicas: None }));
        proposed.is_some()
    }

    // INV-113
    #[test]
    fn a_straggler_is_replaced_after_a_time_if_a_spare_waits() {
        let spares = BTreeSet::from([3]);
        let facts = Facts {
            straggler: Some((straggler(2, StragglerCause::Processor), AFTER)),
            me: 0,
            positions: &[0, 1, 2],
            replicas: &[1, 1, 1],
            times: &[],
            spares: &spares,
        };
        let none = Remedies::default();
        let proposed = Some(Remedy { worker: 2, cause: StragglerCause::Processor, replicas: None });
        assert_eq!(none.propose(REPLACE, facts), proposed);
        let early = facts.straggler.map(|(straggler, since)| (straggler, since - Duration::from_millis(1)));
        for (policy, facts) in [
            (StragglerPolicy::Warn, facts),
            (REPLACE, Facts { straggler: None, ..facts }),
            (REPLACE, Facts { straggler: early, ..facts }),
            (REPLACE, Facts { spares: &BTreeSet::new(), ..facts }),
            // The leader and the chief.
            (REPLACE, Facts { me: 2, ..facts }),
            (REPLACE, Facts { straggler: Some((straggler(0, StragglerCause::Link), AFTER)), me: 1, ..facts }),
            // A rank that does not exist.
            (REPLACE, Facts { straggler: Some((straggler(7, StragglerCause::Link), AFTER)), ..facts }),
        ] {
            assert_eq!(none.propose(policy, facts), None, "{policy:?} {facts:?}");
        }
    }

    // INV-113
    #[test]
    fn a_cause_that_follows_the_rank_is_no_reason() {
        use StragglerCause::*;
        let none = Remedies::default();
        for (cause, proposed) in
            [(Processor, true), (Input, true), (Link, true), (Computing, true), (Outside, false)]
        {
            assert_eq!(proposes(&none, (1, cause), &[0, 1, 2], &[3]), proposed, "{cause:?}");
        }
        // Five logical replicas: worker 0 has one, the others two.
        let spares = BTreeSet::from([3]);
        let of = |worker, cause| {
            let straggler = Some((straggler(worker, cause), AFTER));
            let facts = Facts {
                straggler,
                me: 0,
                positions: &[0, 1, 2],
                replicas: &[2, 1, 2],
                times: &[],
                spares: &spares,
            };
            none.propose(REPLACE, facts).is_some()
        };
        assert_eq!([of(2, Computing), of(1, Computing), of(2, Processor)], [false, true, true]);
    }

    // INV-113
    #[test]
    fn a_replacement_that_did_not_help_is_not_repeated() {
        use StragglerCause::*;
        let mut seen = Remedies::default();
        seen.record(Remedy { worker: 1, cause: Input, replicas: None }, &[0, 1, 2]);
        assert_eq!(seen.count(), 1);
        // Task 3 has taken the place of task 1, and task 4 is another spare.
        let world = [0, 2, 3];
        assert!(!proposes(&seen, (2, Input), &world, &[4]), "the new machine is slow in the same way");
        assert!(proposes(&seen, (2, Processor), &world, &[4]));
        assert!(proposes(&seen, (1, Input), &world, &[4]), "task 2 was there before");
        // Task 1 would come first.
        assert!(!proposes(&seen, (1, Input), &world, &[1, 4]));
    }

    // INV-114
    #[test]
    fn a_slow_worker_gets_the_share_with_which_steps_are_shortest() {
        use StragglerCause::*;
        let none = Remedies::default();
        let spares = BTreeSet::new();
        let propose = |worker: usize, cause, replicas: &[usize], seconds: &[f64], me| {
            let of = |computing: &f64| WorkerTimes { computing: *computing, ..WorkerTimes::default() };
            let times: Vec<_> = seconds.iter().map(of).collect();
            let straggler = Some((straggler(worker, cause), AFTER));
            let facts =
                Facts { straggler, me, positions: &[0, 1, 2], replicas, times: &times, spares: &spares };
            let proposed = none.propose(StragglerPolicy::Rebalance { after: AFTER }, facts);
            proposed.map(|remedy| (remedy.worker, remedy.replicas.unwrap()))
        };
        // Half the speed: 3, 2 and 1 of six replicas take 3 instead of 4.
        assert_eq!(propose(1, Processor, &[2, 2, 2], &[2., 4., 2.], 0), Some((1, 1)));
        assert_eq!(propose(1, Computing, &[6, 6], &[6., 12.], 0), Some((1, 4)));
        // That is the best already.
        assert_eq!(propose(0, Computing, &[8, 4], &[8., 8.], 0), None);
        // The worker is as fast as the others again.
        assert_eq!(propose(0, Computing, &[8, 4], &[8., 4.], 0), Some((1, 6)));
        // Another share would not help.
        assert_eq!(propose(1, Computing, &[1, 1, 1], &[1., 2., 1.], 0), None);
        assert_eq!(propose(1, Computing, &[6, 6], &[6., 6.3], 0), None);
        for (cause, me) in [(Input, 0), (Link, 0), (Outside, 0), (Computing, 1)] {
            assert_eq!(propose(1, cause, &[6, 6], &[6., 12.], me), None, "{cause:?} {me}");
        }
        // Before the first step.
        assert_eq!(propose(1, Computing, &[6, 6], &[], 0), None);
    }
}
