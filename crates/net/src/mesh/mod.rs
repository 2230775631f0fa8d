//! The transport over sockets: a connection to each other worker.
//!
//! | module | contents |
//! |---|---|
//! | `shared` | the links, and the turns of threads to move their bytes |
//! | `background` | the thread that moves bytes while no other thread polls, and detects failed workers |
//! | `latecomers` | workers that connect after the world is complete |
//! | `farewell` | the wait of a closed mesh |

mod background;
mod farewell;
mod latecomers;
mod shared;

use crate::link::Link;
use crate::wire::Frame;
use crate::{Arriving, Drive, Message, Receiver, Region, Transport};
use distribute_cluster::{Address, World};
pub(crate) use latecomers::{Latecomers, Waiting};
pub(crate) use shared::Met;
use shared::Shared;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The transport over sockets, with one connection for each pair of workers.
///
/// Threads that wait for messages [poll](Transport::drive) the sockets themselves. At other times a
/// background thread does, which also detects failed workers. Dropping a mesh sends a goodbye and waits until
/// the others have received everything. The wait lasts while bytes move, within
/// [`Settings::longest_farewell`](crate::Settings::longest_farewell).
pub struct Mesh {
    shared: Arc<Shared>,
    background: Option<JoinHandle<()>>,
    generation: u64,
    /// The positions of the workers in the cluster.
    places: Vec<usize>,
    addresses: Vec<Address>,
    /// The workers that wait for the next world, if this worker accepts latecomers.
    waiting: Option<Arc<dyn Waiting>>,
}

impl Mesh {
    /// Creates the mesh of workers that have completed a rendezvous.
    pub(crate) fn new(met: Met, receiver: Arc<dyn Receiver>) -> io::Result<Self> {
        Self::open(met, receiver, None)
    }

    /// Creates the mesh of workers that have completed a rendezvous, with the door for latecomers and the
    /// workers that wait, if this worker has them.
    pub(crate) fn open(
        met: Met,
        receiver: Arc<dyn Receiver>,
        latecomers: Option<(Box<dyn Latecomers>, Arc<dyn Waiting>)>,
    ) -> io::Result<Self> {
        let (latecomers, waiting) = latecomers.unzip();
        let (generation, places, addresses) = (met.generation, met.places.clone(), met.addresses.clone());
        let shared = Arc::new(Shared::new(met, receiver)?);
        let background = if shared.links.is_empty() && latecomers.is_none() {
            None
        } else {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("distribute-net".to_owned());
            Some(thread.spawn(move || background::run(&shared, latecomers))?)
        };
        Ok(Self { shared, background, generation, places, addresses, waiting })
    }

    /// Returns the number of workers that have come since the world was made and wait for the next one, as
    /// known to the leader. It is 0 if the world needs all workers of the cluster.
    pub fn waiting(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.count())
    }

    /// Returns the positions in the cluster of the workers that wait, as known to the leader.
    pub fn places_waiting(&self) -> BTreeSet<usize> {
        self.waiting.as_ref().map(|waiting| waiting.places()).unwrap_or_default()
    }

    /// Returns the position of each worker in the cluster.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// Returns the address of each worker, the same list on all of them. Empty if the mesh was made without a
    /// rendezvous.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Whether a waiting worker was a member of another world of this generation or a later one. This world's
    /// leader did not know of that world, because it had just started.
    pub fn is_supplanted(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.supplants(self.generation))
    }

    /// Returns the number of times that the world was made: 1 at first, and one more after each rendezvous.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Reclaims memory that others have read and released, without waiting for the next heartbeat.
    pub(crate) fn settle(&self) {
        self.shared.links.iter().for_each(Link::settle);
    }

    /// Returns the world: the number of workers, and the rank of this one.
    pub fn world(&self) -> World {
        self.shared.world
    }

    /// Leaves a world that has lost a worker, to rendezvous again. The others see this worker as disconnected
    /// with the reason [`LEFT`](crate::LEFT), after everything that it has sent.
    pub fn leave(&self) {
        self.shared.close(&Frame::Leave);
    }

    /// Sets whether the work of the world has ended, so that there is no further rendezvous. Replacements of
    /// failed workers are then refused with that reason.
    pub fn set_over(&self, over: bool) {
        self.shared.set_over(over);
    }
}

impl Transport for Mesh {
    fn send(&self, to: usize, message: Message) {
        let shared = &*self.shared;
        let Some(link) = shared.link(to) else { return };
        if link.send_message(message, shared.arena.as_ref()) {
            shared.wake();
        }
    }

    fn memory(&self, len: usize) -> Option<Region> {
        let arena = self.shared.arena.as_ref()?;
        // Memory that was given back is used first.
        self.settle();
        match arena.allocate(len) {
            Ok(region) => Some(region),
            Err(error) => {
                tracing::debug!(len, %error, "there is no memory that other workers can read");
                None
            }
        }
    }

    fn is_near(&self, worker: usize) -> bool {
        self.shared.link(worker).is_some_and(|link| link.pair().is_some())
    }

    fn arriving(&self, worker: usize) -> Option<Arriving> {
        self.shared.link(worker)?.arriving()
    }

    fn stay(&self, patience: Duration) {
        self.shared.stay(patience);
    }

    fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive {
        self.shared.drive(patience, is_there)
    }

    fn close(&self) {
        self.shared.close(&Frame::Goodbye);
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.close();
        if let Some(background) = self.background.take() {
            // The thread exits by the deadline of the farewell.
            let _ = background.join();
        }
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mesh({})", self.shared.world)
    }
}
