//! Servers of variables: which changes of closures they have made, as those of parameter servers remember it.

use distribute_coordinator::Origin;
use std::collections::BTreeSet;

/// One of them.
#[derive(Debug, Default)]
pub struct Server {
    /// The coordinator whose closures change it.
    job: u64,
    /// All closures before have ended.
    floor: u64,
    made: BTreeSet<(u64, u64)>,
}

/// What a server does about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It makes it.
    Made,
    /// It has made it before.
    Known,
    /// Nothing may come of this closure or coordinator any more.
    Refused,
}

impl Server {
    /// From now on the closures of this coordinator change it, if it is later than the one before.
    pub fn begin(&mut self, job: u64) {
        if job > self.job {
            *self = Self { job, ..Self::default() };
        }
    }

    /// A change comes, with its number among those of its closure.
    pub fn change(&mut self, origin: Origin, number: u64) -> Change {
        if origin.job != self.job {
            return Change::Refused;
        }
        self.floor = self.floor.max(origin.floor.0);
        let floor = self.floor;
        self.made.retain(|(closure, _)| *closure >= floor);
        if origin.closure.0 < floor {
            return Change::Refused;
        }
        if self.made.insert((origin.closure.0, number)) { Change::Made } else { Change::Known }
    }
}
