//! Workers that come when the world is complete, as a mesh knows them: the rendezvous talks to them.

use rustix::event::PollFd;
use std::collections::BTreeSet;

/// The door for workers that come when the world is complete: they are told so.
pub(crate) trait Latecomers: Send {
    /// The descriptors to wait for.
    fn interests(&self) -> Vec<PollFd<'_>>;

    /// Talks to those who have come. `lost` says which workers are, `over` whether the world takes nobody in their place.
    fn attend(&mut self, lost: &dyn Fn(usize) -> bool, over: bool);
}

/// The workers that wait for the next world, as several threads see them.
pub(crate) trait Waiting: Send + Sync {
    /// The number of workers that wait.
    fn count(&self) -> usize;

    /// Their places.
    fn places(&self) -> BTreeSet<usize>;

    /// Whether one of them was a member of a world as late as this generation, and not of that.
    fn supplants(&self, generation: u64) -> bool;
}
