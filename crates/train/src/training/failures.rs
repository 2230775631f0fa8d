//! The errors after which the group re-forms and training resumes, because a worker has failed or new workers are
//! waiting.

use distribute_base::Error;
use distribute_cluster::{Fault, World};
use distribute_collective::recovery::RecoveryLimit;

/// Returns `true` if an error means that another worker failed or timed out, or that workers are waiting to join.
///
/// `updates` is the number of updates that this worker has made. `failures` records timeouts: returns `false` if a
/// worker times out a second time without an update since the first. After an error for which this returns `true`, the
/// state of this worker is complete or can be received from another worker.
pub(super) fn can_continue(error: &Error, world: World, failures: &mut RecoveryLimit, updates: u64) -> bool {
    if error.is_waiting() {
        return true;
    }
    if !world.is_multi_worker() {
        return false;
    }
    match error.blame() {
        Some(blame) => failures.may_continue(blame, world, updates),
        None => error.worker().is_some_and(|worker| worker != world.worker()),
    }
}

/// Returns the workers that are lost according to an error.
pub(super) fn lost_workers(error: &Error, world: World) -> Vec<usize> {
    let blame = error.blame().filter(|blame| blame.fault == Fault::Lost);
    blame.into_iter().flat_map(|blame| &blame.culprits).map(|replica| world.worker_of(*replica)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Blame, Fingerprint, Operation};
    use std::panic::Location;
    use std::sync::Arc;

    #[test]
    fn a_worker_goes_on_after_the_errors_of_others_and_not_after_its_own() {
        let world = World::new(3, 1, 2).unwrap();
        let call = Fingerprint::new(Operation::Run, "", Location::caller());
        let failed = |replica| Error::Collective(Arc::new(Blame::failed(1, replica, &call)));
        let worker = |worker| Error::worker_failed(worker, Error::other("no such file"));
        for (error, can_continue) in [
            (failed(0), true),
            (failed(3), false),
            (worker(2), true),
            (worker(1), false),
            (Error::other(worker(0)), true),
            (Error::other("out of disk"), false),
            (Error::WorkersWaiting { step: 3, waiting: 1 }, true),
            (Error::other(Error::WorkersWaiting { step: 3, waiting: 1 }), true),
        ] {
            let failures = &mut RecoveryLimit::default();
            assert_eq!(super::can_continue(&error, world, failures, 7), can_continue, "{error}");
            // A single worker gets no errors of others, except for workers that wait.
            assert_eq!(
                super::can_continue(&error, World::default(), failures, 7),
                error.is_waiting(),
                "{error}"
            );
        }
    }
}
