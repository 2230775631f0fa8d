//! Which errors are those of a training that can go on when the workers have met again.

use crate::Error;
use distribute_cluster::{Fault, World};

/// Whether an error tells that another worker is lost, late or has failed: the state of this one is whole, or can be taken from
/// another.
pub(super) fn is_of_another(error: &Error, world: World) -> bool {
    let Some(blame) = error.blame() else {
        return error.worker().is_some_and(|worker| worker != world.worker());
    };
    let mine = || blame.culprits.iter().any(|replica| world.local_replicas().contains(replica));
    match blame.fault {
        // Also of this one: it was late, and the others meet again.
        Fault::Lost | Fault::Late => true,
        Fault::Failed => !mine(),
        // Another program: it would come to the same again.
        Fault::Mismatch | Fault::Returned => false,
    }
}

/// Whether an error tells that a worker did not come in time, and may come yet.
pub(super) fn is_late(error: &Error) -> bool {
    error.blame().is_some_and(|blame| blame.fault == Fault::Late)
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Blame, Cause, Fingerprint, Operation};
    use std::panic::Location;
    use std::sync::Arc;

    #[test]
    fn a_worker_goes_on_after_the_faults_of_others_and_not_after_its_own() {
        let world = World::new(3, 1, 2).unwrap();
        let call = Fingerprint::new(Operation::Run, "", Location::caller());
        let blame = |fault, culprits: &[usize]| {
            let cause = Cause::InCall { call: call.clone() };
            Error::Collective(Arc::new(Blame { fault, step: 1, culprits: culprits.to_vec(), cause }))
        };
        let worker = |worker| Error::Worker { worker, source: Box::new(Error::other("no such file")) };
        for (error, goes_on) in [
            (blame(Fault::Lost, &[4, 5]), true),
            (blame(Fault::Late, &[2]), true),
            (blame(Fault::Failed, &[0]), true),
            (blame(Fault::Failed, &[3]), false),
            (blame(Fault::Mismatch, &[0]), false),
            (blame(Fault::Returned, &[0]), false),
            (worker(2), true),
            (worker(1), false),
            (Error::other(worker(0)), true),
            (Error::other("out of disk"), false),
        ] {
            assert_eq!(is_of_another(&error, world), goes_on, "{error}");
        }
    }
}
