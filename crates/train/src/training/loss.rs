//! The errors after which a training can resume when the group is re-formed: a worker failed, or new workers wait.

use distribute_base::Error;
use distribute_cluster::World;
use distribute_collective::recovery::Losses;
use distribute_net::JoinError;
use distribute_net::handshake::Reason;

/// Whether an error means that another worker failed, timed out or waits to participate.
///
/// After such an error the state of this worker, which has made this number of updates, is complete, or can be
/// received from another.
pub(super) fn goes_on(error: &Error, world: World, losses: &mut Losses, updates: u64) -> bool {
    if error.is_waiting() {
        return true;
    }
    if !world.is_multi_worker() {
        return false;
    }
    match error.blame() {
        Some(blame) => losses.goes_on(blame, world, updates),
        None => error.worker().is_some_and(|worker| worker != world.worker()),
    }
}

/// Whether an error means that the others had already finished when this worker tried to join them again.
pub(super) fn is_end_of_all(error: &Error) -> bool {
    let Error::Join(error) = error else { return false };
    matches!(&**error, JoinError::Refused { refusal, .. } if refusal.reason == Reason::Ended)
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
        for (error, goes_on) in [
            (failed(0), true),
            (failed(3), false),
            (worker(2), true),
            (worker(1), false),
            (Error::other(worker(0)), true),
            (Error::other("out of disk"), false),
            (Error::WorkersWaiting { step: 3, waiting: 1 }, true),
            (Error::other(Error::WorkersWaiting { step: 3, waiting: 1 }), true),
        ] {
            let losses = &mut Losses::default();
            assert_eq!(super::goes_on(&error, world, losses, 7), goes_on, "{error}");
            // A single worker gets no errors of others, except for workers that wait.
            assert_eq!(super::goes_on(&error, World::default(), losses, 7), error.is_waiting(), "{error}");
        }
    }
}
