//! Links with a library that sums next to them, such as NCCL next to sockets.

use super::renewal::Renewable;
use distribute_net::{Arriving, Drive, Message, NativeSum, Region, Transport};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Sends by the links, and sums by the library: in the world in which the library was set up, since it knows no other
/// workers.
pub(super) struct Summing {
    links: Arc<dyn Transport>,
    library: Arc<dyn NativeSum>,
    /// The links, where they can be made again, and the generation of the library.
    of: Option<(Arc<Renewable>, u64)>,
}

impl Summing {
    pub fn new(
        links: Arc<dyn Transport>,
        library: Arc<dyn NativeSum>,
        renewable: Option<&Arc<Renewable>>,
    ) -> Self {
        let of = renewable.map(|renewable| (renewable.clone(), renewable.generation()));
        Self { links, library, of }
    }
}

impl Transport for Summing {
    fn send(&self, to: usize, message: Message) {
        self.links.send(to, message);
    }

    fn memory(&self, len: usize) -> Option<Region> {
        self.links.memory(len)
    }

    fn is_near(&self, worker: usize) -> bool {
        self.links.is_near(worker)
    }

    fn arriving(&self, worker: usize) -> Option<Arriving> {
        self.links.arriving(worker)
    }

    fn stay(&self, patience: Duration) {
        self.links.stay(patience);
    }

    fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive {
        self.links.drive(patience, is_there)
    }

    fn native_sum(&self) -> Option<&dyn NativeSum> {
        let is_of_this_world = self.of.as_ref().is_none_or(|(links, made)| links.generation() == *made);
        is_of_this_world.then_some(&*self.library)
    }

    fn close(&self) {
        self.links.close();
    }
}

impl fmt::Debug for Summing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, sums by {}", self.links, self.library.name())
    }
}
