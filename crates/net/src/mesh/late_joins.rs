//! Workers that connect after the world is complete, as seen by a mesh. The rendezvous runs their handshakes.

use rustix::event::PollFd;
use std::collections::BTreeSet;

/// A handler of processes that connect after the world is complete. It accepts spares and rejects all others with a
/// reason.
pub(crate) trait LateJoinHandler: Send {
    /// Returns the descriptors for which to wait.
    fn interests(&self) -> Vec<PollFd<'_>>;

    /// Continues the handshakes of new connections. `lost` returns whether a worker is disconnected. `over` is `true`
    /// if the world accepts no replacements.
    fn serve(&mut self, lost: &dyn Fn(usize) -> bool, over: bool);
}

/// A record of the workers that wait for the next world. Threads share it.
pub(crate) trait WaitingWorkers: Send + Sync {
    /// Returns the number of workers that wait, without spares.
    fn count(&self) -> usize;

    /// Returns the positions of the waiting workers in the cluster, including spares.
    fn positions(&self) -> BTreeSet<usize>;

    /// Returns whether another world has replaced the one of `generation`: a waiting worker was a member of a different
    /// world, of the same generation or a later one.
    fn supplants(&self, generation: u64) -> bool;

    /// Raises the generation that the members of the world claim to other processes.
    fn raise(&self, generation: u64);
}
