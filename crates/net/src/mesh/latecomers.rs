//! Those who come when the world is complete, as a mesh knows them: the rendezvous talks to them.

use rustix::event::PollFd;
use std::collections::BTreeSet;

/// Who comes when the world is complete: they are told so.
pub(crate) trait Latecomers: Send {
    /// What to wait for.
    fn interests(&self) -> Vec<PollFd<'_>>;

    /// Talks to those who have come. `lost` says which workers are, `over` whether the world takes nobody in their place.
    fn attend(&mut self, lost: &dyn Fn(usize) -> bool, over: bool);
}

/// Those who wait for the next world, as several threads see them.
pub(crate) trait Waiting: Send + Sync {
    /// How many wait.
    fn count(&self) -> usize;

    /// Their places.
    fn places(&self) -> BTreeSet<usize>;

    /// Whether one of them was a member of a world as late as this generation, and not of that.
    fn supplants(&self, generation: u64) -> bool;
}
