//! Servers of variables. Like parameter servers, they record the changes that they have made for closures.

use distribute_coordinator::Origin;
use std::collections::BTreeSet;

/// A server, which records the changes that it has made.
#[derive(Debug, Default)]
pub struct Server {
    /// The coordinator whose closures may change this server.
    job: u64,
    /// The first closure that may still change this server. All closures before it have ended.
    floor: u64,
    made: BTreeSet<(u64, u64)>,
}

/// The result of a change that is requested from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server makes the change.
    Made,
    /// The server has already made the change.
    Known,
    /// The server rejects the change, because the closure or coordinator may not make changes any more.
    Refused,
}

impl Server {
    /// Accepts only changes by this coordinator's closures from now on. Does nothing unless this coordinator is later
    /// than the previous one.
    pub fn begin(&mut self, job: u64) {
        if job > self.job {
            *self = Self { job, ..Self::default() };
        }
    }

    /// Makes a change, unless it was made before. Refuses it if the closure belongs to another coordinator, or if the
    /// coordinator has reported that the closure has ended. `number` is the index of the change among the changes of
    /// its closure.
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
