//! The remedies for slow workers: a spare takes the place of one, or it gets fewer logical replicas.
//! `distribute_decisions` makes the decision.

use super::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_collective::group::Group;
use distribute_collective::recovery::Share;
use distribute_decisions::StragglerPolicy;
use distribute_decisions::internal::{Facts, Remedies, Remedy};

/// The decision that the next rendezvous follows, and the remedies so far.
#[derive(Debug, Default)]
pub(super) struct StragglerRemedies {
    /// The decision of all workers; `None` if there is none, or if this process has left the world since.
    decided: Option<Remedy>,
    /// The share of a worker on which all had decided before the group re-formed.
    share: Option<Share>,
    seen: Remedies,
    /// The last decision, as text.
    last: Option<String>,
    /// The last replacement, as text.
    replaced: Option<String>,
}

impl Strategy {
    /// Returns the remedy that this worker proposes to the others when a step begins.
    pub(crate) fn propose_remedy(&self, group: &Group) -> Option<Remedy> {
        let policy = self.extended().straggler_policy();
        if policy == StragglerPolicy::Warn || !self.0.workers.survives() {
            return None;
        }
        let world = group.world();
        if matches!(policy, StragglerPolicy::Rebalance { .. }) && world.logical_replicas().is_none() {
            return None;
        }
        let replicas: Vec<_> = (0..world.workers()).map(|worker| world.replicas_of(worker).len()).collect();
        let facts = Facts {
            straggler: self.step_meter().lasting_straggler(),
            me: world.worker(),
            positions: &group.positions(),
            replicas: &replicas,
            times: &self.step_meter().means(),
            spares: &group.spare_positions(),
        };
        lock(&self.0.workers.remedies).seen.propose(policy, facts)
    }

    /// Returns an error if a worker has proposed a remedy. The group then re-forms, with a spare or with other shares.
    /// `proposed` contains the proposals of all workers, in the order of ranks.
    pub(crate) fn require_no_remedy(
        &self,
        group: &Group,
        mut proposed: impl Iterator<Item = Option<Remedy>>,
    ) -> Result<()> {
        let world = self.world();
        let is_possible = |remedy: &Remedy| match remedy.replicas {
            Some(replicas) => world.with_share(remedy.worker, replicas).is_some(),
            None => (1..world.workers()).contains(&remedy.worker),
        };
        // INV-113
        let Some(remedy) = proposed.find_map(|it| it.filter(is_possible)) else { return Ok(()) };
        let (Remedy { worker, cause, replicas }, name) = (remedy, self.describe_worker(remedy.worker));
        let mut remedies = lock(&self.0.workers.remedies);
        remedies.seen.record(remedy, &group.positions());
        remedies.last = Some(match (replicas, world.logical_replicas()) {
            (Some(replicas), Some(all)) => {
                let before = world.replicas_of(worker).len();
                format!("{name} has {replicas} of {all} logical replicas instead of {before}: {cause}")
            }
            _ => format!("a spare takes the place of {name}: {cause}"),
        });
        if replicas.is_none() {
            remedies.replaced = Some(format!("{name}: {cause}"));
        }
        remedies.decided = Some(remedy);
        Err(Error::WorkersWaiting { step: self.steps() + 1, waiting: 1 })
    }

    /// Returns the remedy for a slow worker with which the group re-forms, as text; `None` if there is none.
    #[doc(hidden)]
    pub fn straggler_remedy(&self) -> Option<String> {
        let remedies = lock(&self.0.workers.remedies);
        remedies.last.clone().filter(|_| remedies.decided.is_some())
    }

    /// Returns the number of slow workers whose place a spare has taken while this process was a worker, and the last
    /// of them with the reason, as text.
    #[doc(hidden)]
    pub fn straggler_replacements(&self) -> (u64, Option<String>) {
        let remedies = lock(&self.0.workers.remedies);
        (remedies.seen.count(), remedies.replaced.clone())
    }

    /// Prepares this worker to leave the world after a decision. If a spare takes the place of another worker, adds
    /// that one to the workers that are leaving. On that worker, reports to the others that it leaves instead.
    pub(super) fn follow_remedy(&self, leaving: &mut Vec<usize>) {
        let Some(group) = self.extended().group() else { return };
        let mut remedies = lock(&self.0.workers.remedies);
        let Some(Remedy { worker, replicas, .. }) = remedies.decided.take() else { return };
        match replicas {
            Some(replicas) => {
                let workers = group.world().workers();
                let share = |position| Share { position, replicas, workers };
                remedies.share = group.positions().get(worker).copied().map(share);
            }
            None if worker == group.world().worker() => group.resign(),
            None => leaving.push(worker),
        }
    }

    /// Removes and returns the share on which all workers had decided before the group re-formed.
    #[doc(hidden)]
    pub fn take_share(&self) -> Option<Share> {
        lock(&self.0.workers.remedies).share.take()
    }

    /// Gives one worker another number of logical replicas until the group re-forms. All workers make this call after
    /// they have agreed on the share, and before the next call.
    #[doc(hidden)]
    pub fn apply_share(&self, share: Share) {
        // INV-114
        let Some(group) = self.extended().group() else { return };
        if let Some(worker) = group.positions().iter().position(|position| *position == share.position) {
            group.set_share(worker, share.replicas);
        }
    }

    /// Returns whether the number of logical replicas of this worker may change during training.
    #[doc(hidden)]
    pub fn changes_shares(&self) -> bool {
        let extended = self.extended();
        let rebalances = matches!(extended.straggler_policy(), StragglerPolicy::Rebalance { .. });
        self.world().logical_replicas().is_some() && (rebalances || extended.elastic().is_some())
    }
}
