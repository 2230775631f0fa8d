//! Workers that connect after the world is complete, as seen by a mesh. The rendezvous runs their handshakes.

use rustix::event::PollFd;
use std::collections::BTreeSet;

/// The door for workers that connect after the world is complete. It refuses them with the reason.
pub(crate) trait Latecomers: Send {
    /// Returns the descriptors to wait for.
    fn interests(&self) -> Vec<PollFd<'_>>;

    /// Runs the handshakes of new connections. `lost` returns whether a worker is disconnected. `over` is
    /// whether the world takes no replacements.
    fn attend(&mut self, lost: &dyn Fn(usize) -> bool, over: bool);
}

/// The workers that wait for the next world, as several threads see them.
pub(crate) trait Waiting: Send + Sync {
    /// Returns the number of workers that wait.
    fn count(&self) -> usize;

    /// Returns their positions in the cluster.
    fn places(&self) -> BTreeSet<usize>;

    /// Whether one of them was a member of another world of this generation or a later one.
    fn supplants(&self, generation: u64) -> bool;
}
