//! The transport over sockets: a connection to each other worker.
//!
//! | file | what it is |
//! |---|---|
//! | `shared` | the links, and the turn of the threads to move their bytes |
//! | `background` | the thread that moves bytes while nobody waits, and notices who has died |
//! | `latecomers` | those who come when the world is complete |
//! | `farewell` | how long a closed mesh stays |

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

/// The transport over sockets: one connection for each pair of workers.
///
/// Threads that wait for messages [drive](Transport::drive) the sockets themselves. A thread in the background does while
/// nobody waits, and notices workers that have died. A mesh that is dropped says goodbye, and waits until the others have
/// what it has sent: as long as bytes move, within [`Settings::longest_farewell`](crate::Settings::longest_farewell).
pub struct Mesh {
    shared: Arc<Shared>,
    background: Option<JoinHandle<()>>,
    generation: u64,
    /// The places of the workers in the cluster, and where they are.
    places: Vec<usize>,
    addresses: Vec<Address>,
    /// The workers that wait for the next world, if this worker talks to those who come.
    waiting: Option<Arc<dyn Waiting>>,
}

impl Mesh {
    /// The mesh of those who have met.
    pub(crate) fn new(met: Met, receiver: Arc<dyn Receiver>) -> io::Result<Self> {
        Self::open(met, receiver, None)
    }

    /// The mesh of those who have met, and how many wait for the next world, as the one says that talks to those who come.
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

    /// The number of workers that have come since the world was made, and wait until it is made again: of clusters in which not all have
    /// to be there. The leader knows.
    pub fn waiting(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.count())
    }

    /// The places in the cluster of those that wait, as far as the leader knows.
    pub fn places_waiting(&self) -> BTreeSet<usize> {
        self.waiting.as_ref().map(|waiting| waiting.places()).unwrap_or_default()
    }

    /// The place of each worker in the cluster.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// The address of each worker, as all of them have been told alike; nothing where they met in no rendezvous.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Whether one waits that was a member of a world as late as this one, and not of this one: its leader knew nothing of that world,
    /// because it had just started.
    pub fn is_supplanted(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.supplants(self.generation))
    }

    /// The number of times that the world has been made: 1 at first, and one more each time its workers have met again.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes back what others have read in this worker's memory, and let go of, without waiting for the next sign of life.
    pub(crate) fn settle(&self) {
        self.shared.links.iter().for_each(Link::settle);
    }

    /// The workers, and which of them this is.
    pub fn world(&self) -> World {
        self.shared.world
    }

    /// Leaves the world, in which a worker was lost, to meet the others again. To them it is lost as [`LEFT`](crate::LEFT), once what it
    /// has sent has come.
    pub fn leave(&self) {
        self.shared.close(&Frame::Leave);
    }

    /// Whether what the world was made for has ended, so that its workers don't meet again: who comes in the place of one that was
    /// lost is told so, and refused.
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
        // What has been given back is used first.
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
            // It ends by the deadline of the farewell.
            let _ = background.join();
        }
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mesh({})", self.shared.world)
    }
}
