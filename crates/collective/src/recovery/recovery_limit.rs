//! [`RecoveryLimit`]: the errors after which a worker re-forms the group.

use distribute_cluster::{Blame, Fault, World};

/// The rule that decides after which errors a worker re-forms the group and continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryLimit {
    /// The number of updates at the last timeout; `None` if there was none.
    updates_at_timeout: Option<u64>,
    /// The last step in which data arrived changed; `None` if there was none.
    step_of_corruption: Option<u64>,
}

impl RecoveryLimit {
    /// Returns whether the worker of `world`, after `updates` updates of the weights, rejoins the group because of
    /// `blame`.
    ///
    /// A worker rejoins after losses and after failures of other workers. It rejoins after a timeout, unless the
    /// previous timeout was at the same number of updates. It rejoins after data has arrived changed, unless that
    /// happened in the same step before. This call records timeouts and changed data. A worker does not rejoin if calls
    /// differ or if members have returned, because the next attempt would fail in the same way.
    ///
    /// ```
    /// use distribute_cluster::{Blame, Fingerprint, Operation, World};
    /// use distribute_collective::recovery::RecoveryLimit;
    /// use std::panic::Location;
    ///
    /// let world = World::new(2, 0, 1)?;
    /// let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    /// let of_worker = |worker| Blame::failed(7, worker, &call);
    /// assert!(RecoveryLimit::default().may_continue(&of_worker(1), world, 6));
    /// assert!(!RecoveryLimit::default().may_continue(&of_worker(0), world, 6), "its own failure");
    /// # Ok::<(), distribute_cluster::WorldError>(())
    /// ```
    pub fn may_continue(&mut self, blame: &Blame, world: World, updates: u64) -> bool {
        let mine = || blame.culprits.iter().any(|replica| world.local_replicas().contains(replica));
        match blame.fault {
            // Also if this worker was lost: it joins the others again.
            Fault::Lost => true,
            // If the same update times out again, re-forming the group does not help.
            Fault::TimedOut => self.updates_at_timeout.replace(updates) != Some(updates),
            // A link that changes data of a step again has to be replaced. The step is the same on all workers, unlike
            // the number of updates: some workers may have made that of the step.
            Fault::Corrupted => self.step_of_corruption.replace(blame.step) != Some(blame.step),
            Fault::Failed => !mine(),
            // The workers run different programs, so a retry would fail again.
            Fault::Mismatch | Fault::Returned => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Cause, Fingerprint, Operation};
    use std::panic::Location;

    fn blame(fault: Fault, culprits: &[usize]) -> Blame {
        let call = Fingerprint::new(Operation::Run, "", Location::caller());
        let (cause, culprits) = (Cause::InCall { call }, culprits.to_vec());
        Blame { fault, step: 1, culprits, cause, processes: Vec::new() }
    }

    #[test]
    fn a_worker_continues_after_faults_of_others_only() {
        let world = World::new(3, 1, 2).unwrap();
        for (blame, may_continue) in [
            (blame(Fault::Lost, &[4, 5]), true),
            (blame(Fault::TimedOut, &[2]), true),
            (blame(Fault::Corrupted, &[2, 3]), true),
            (blame(Fault::Failed, &[0]), true),
            (blame(Fault::Failed, &[3]), false),
            (blame(Fault::Mismatch, &[0]), false),
            (blame(Fault::Returned, &[0]), false),
        ] {
            assert_eq!(RecoveryLimit::default().may_continue(&blame, world, 7), may_continue, "{blame}");
        }
    }

    #[test]
    fn who_is_late_twice_with_no_update_in_between_is_not_met_again() {
        let (world, mut limit) = (World::new(3, 1, 2).unwrap(), RecoveryLimit::default());
        let late = blame(Fault::TimedOut, &[2]);
        let may_continue = [7, 8, 8, 8].map(|updates| limit.may_continue(&late, world, updates));
        assert_eq!(may_continue, [true, true, false, false]);
        assert!(limit.may_continue(&blame(Fault::Lost, &[2]), world, 8));
    }

    #[test]
    fn after_changed_data_all_workers_decide_alike_even_if_some_have_made_the_update() {
        let changed = |step| Blame { step, ..blame(Fault::Corrupted, &[2, 3]) };
        // The first has made the update of step 7, whose state the second receives.
        for updates in [[7, 7, 7], [6, 7, 7]] {
            let (world, mut limit) = (World::new(3, 1, 2).unwrap(), RecoveryLimit::default());
            let may_continue = [7, 8, 8]
                .into_iter()
                .zip(updates)
                .map(|(step, updates)| limit.may_continue(&changed(step), world, updates));
            assert_eq!(may_continue.collect::<Vec<_>>(), [true, true, false], "{updates:?}");
        }
    }
}
