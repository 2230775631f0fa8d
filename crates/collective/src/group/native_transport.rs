//! A transport with an additional library that computes sums, such as NCCL in addition to sockets.

use super::reformable::ReformableLinks;
use bytes::Bytes;
use distribute_net::{Message, NativeSum, PartialMessage, PollOutcome, Region, Transport};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A transport that sends messages over links and computes sums with a library. The library is used only in the world
/// for which it was set up, because it connects the workers of that world.
pub(super) struct NativeSumTransport {
    links: Arc<dyn Transport>,
    library: Arc<dyn NativeSum>,
    /// The links if they can re-form, and the generation of the world for which the library was set up.
    reformable: Option<(Arc<ReformableLinks>, u64)>,
}

impl NativeSumTransport {
    pub fn new(
        links: Arc<dyn Transport>,
        library: Arc<dyn NativeSum>,
        reformable: Option<&Arc<ReformableLinks>>,
    ) -> Self {
        let reformable = reformable.map(|reformable| (reformable.clone(), reformable.generation()));
        Self { links, library, reformable }
    }
}

impl Transport for NativeSumTransport {
    fn send(&self, to: usize, message: Message) {
        self.links.send(to, message);
    }

    fn memory(&self, len: usize) -> Option<Region> {
        self.links.memory(len)
    }

    fn is_near(&self, worker: usize) -> bool {
        self.links.is_near(worker)
    }

    fn leaves_machine(&self, worker: usize) -> bool {
        self.links.leaves_machine(worker)
    }

    fn partial_message(&self, worker: usize) -> Option<PartialMessage> {
        self.links.partial_message(worker)
    }

    fn extend_shutdown_wait(&self, patience: Duration) {
        self.links.extend_shutdown_wait(patience);
    }

    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.links.poll(patience, is_there)
    }

    fn shares_memory(&self) -> bool {
        self.links.shares_memory()
    }

    fn exchange(&self, head: &[u8], bodies: &mut [Option<Bytes>]) -> Option<usize> {
        self.links.exchange(head, bodies)
    }

    fn native_sum(&self) -> Option<&dyn NativeSum> {
        let is_of_this_world =
            self.reformable.as_ref().is_none_or(|(links, made)| links.generation() == *made);
        is_of_this_world.then_some(&*self.library)
    }

    fn close(&self) {
        self.links.close();
    }
}

impl fmt::Debug for NativeSumTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, sums by {}", self.links, self.library.name())
    }
}
