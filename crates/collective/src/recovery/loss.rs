//! After which losses a worker meets the others again.

use distribute_cluster::{Blame, Fault, World};

/// The losses that a worker has gone on after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The number of updates when a worker last timed out.
    stood: Option<u64>,
}

impl Losses {
    /// Whether the worker of `world`, which has made this number of updates, joins the group again.
    ///
    /// ```
    /// use distribute_cluster::{Blame, Fingerprint, Operation, World};
    /// use distribute_collective::recovery::Losses;
    /// use std::panic::Location;
    ///
    /// let world = World::new(2, 0, 1)?;
    /// let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    /// let of_worker = |worker| Blame::failed(7, worker, &call);
    /// assert!(Losses::default().goes_on(&of_worker(1), world, 6));
    /// assert!(!Losses::default().goes_on(&of_worker(0), world, 6), "its own failure");
    /// # Ok::<(), distribute_cluster::WorldError>(())
    /// ```
    pub fn goes_on(&mut self, blame: &Blame, world: World, updates: u64) -> bool {
        let mine = || blame.culprits.iter().any(|replica| world.local_replicas().contains(replica));
        match blame.fault {
            // Also of this one: the others have lost it, and meet again.
            Fault::Lost => true,
            // Who is late again in what is made again is not lost.
            Fault::Late => self.stood.replace(updates) != Some(updates),
            Fault::Failed => !mine(),
            // Another program: it would come to the same again.
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
    fn a_worker_goes_on_after_the_faults_of_others_and_not_after_its_own() {
        let world = World::new(3, 1, 2).unwrap();
        for (blame, goes_on) in [
            (blame(Fault::Lost, &[4, 5]), true),
            (blame(Fault::Late, &[2]), true),
            (blame(Fault::Failed, &[0]), true),
            (blame(Fault::Failed, &[3]), false),
            (blame(Fault::Mismatch, &[0]), false),
            (blame(Fault::Returned, &[0]), false),
        ] {
            assert_eq!(Losses::default().goes_on(&blame, world, 7), goes_on, "{blame}");
        }
    }

    #[test]
    fn who_is_late_twice_with_no_update_in_between_is_not_met_again() {
        let (world, mut losses) = (World::new(3, 1, 2).unwrap(), Losses::default());
        let late = blame(Fault::Late, &[2]);
        let goes_on = [7, 8, 8, 8].map(|updates| losses.goes_on(&late, world, updates));
        assert_eq!(goes_on, [true, true, false, false]);
        assert!(losses.goes_on(&blame(Fault::Lost, &[2]), world, 8));
    }
}
