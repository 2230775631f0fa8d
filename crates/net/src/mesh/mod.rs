//! The transport over sockets: a connection to every other worker.
//!
//! | module | contents |
//! |---|---|
//! | `shared` | the links, and the lock by which threads take turns to poll them |
//! | `exchange` | short messages that all workers send to each other at the same time |
//! | `background` | the thread that polls while no other thread does, and detects failed workers |
//! | `late_joins` | workers that connect after the world is complete |
//! | `shutdown_wait` | how long a closed mesh waits for the others to receive its last messages |

mod background;
mod exchange;
mod late_joins;
mod shared;
mod shutdown_wait;

use crate::link::Link;
use crate::wire::Frame;
use crate::{Message, PartialMessage, PollOutcome, Receiver, Region, Transport};
use bytes::Bytes;
use distribute_cluster::{Address, World};
pub(crate) use late_joins::{LateJoinHandler, WaitingWorkers};
pub(crate) use shared::RendezvousResult;
use shared::Shared;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The transport over sockets, with one connection for each pair of workers.
///
/// Threads that wait for messages [poll](Transport::poll) the sockets themselves. At other times a background thread
/// polls them. It also detects failed workers.
///
/// Dropping a mesh sends a final message and waits until the others have received everything. The wait lasts as long as
/// bytes are transferred, up to [`Settings::max_shutdown_wait`](crate::Settings::max_shutdown_wait).
pub struct Mesh {
    shared: Arc<Shared>,
    background: Option<JoinHandle<()>>,
    generation: u64,
    /// The position of each worker in the cluster, by rank.
    positions: Vec<usize>,
    addresses: Vec<Address>,
    /// The workers that wait for the next world, if this worker records them.
    waiting: Option<Arc<dyn WaitingWorkers>>,
}

impl Mesh {
    /// Creates the mesh of workers that have completed a rendezvous.
    ///
    /// # Errors
    /// Returns an I/O error if the system cannot create a socket or start a thread.
    pub(crate) fn new(met: RendezvousResult, receiver: Arc<dyn Receiver>) -> io::Result<Self> {
        Self::open(met, receiver, None)
    }

    /// Creates the mesh of workers that have completed a rendezvous. `late_joins` is the handler of processes that
    /// connect later and the record of waiting workers, if this worker accepts such processes.
    ///
    /// # Errors
    /// Returns an I/O error if the system cannot create a socket or start a thread.
    pub(crate) fn open(
        met: RendezvousResult,
        receiver: Arc<dyn Receiver>,
        late_joins: Option<(Box<dyn LateJoinHandler>, Arc<dyn WaitingWorkers>)>,
    ) -> io::Result<Self> {
        let (late_joins, waiting) = late_joins.unzip();
        let (generation, positions, addresses) =
            (met.generation, met.positions.clone(), met.addresses.clone());
        let shared = Arc::new(Shared::new(met, receiver)?);
        let background = if shared.links.is_empty() && late_joins.is_none() {
            None
        } else {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("distribute-net".to_owned());
            Some(thread.spawn(move || background::run(&shared, late_joins))?)
        };
        Ok(Self { shared, background, generation, positions, addresses, waiting })
    }

    /// Returns the number of workers that have connected since the world was formed and wait for the next one. Only the
    /// leader knows the number; on other workers it is 0. It is also 0 if the world needs all workers of the cluster.
    pub fn waiting(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.count())
    }

    /// Returns the positions in the cluster of the workers that [wait](Self::waiting). Only the leader knows them; on
    /// other workers the set is empty.
    pub fn waiting_positions(&self) -> BTreeSet<usize> {
        self.waiting.as_ref().map(|waiting| waiting.positions()).unwrap_or_default()
    }

    /// Returns the position of each worker in the cluster, by rank.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Returns the address of each worker. The list is the same on all workers. It is empty if the mesh was created
    /// without a rendezvous.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns whether another world has replaced this one: a waiting worker was a member of a different world, of the
    /// same generation or a later one.
    ///
    /// This happens if the leader had just started when it formed this world, and did not know of the other one. Only
    /// the leader detects it; on other workers the result is `false`.
    pub fn is_supplanted(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.supplants(self.generation))
    }

    /// Returns the generation of the world. It is 1 at first, and incremented by each rendezvous.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Reclaims memory that others have read and released, without waiting for the next heartbeat.
    pub(crate) fn reclaim(&self) {
        self.shared.links.iter().for_each(Link::reclaim);
    }

    /// Returns whether a worker has sent bytes that are not valid frames.
    pub(crate) fn is_undecodable(&self, worker: usize) -> bool {
        self.shared.link(worker).is_some_and(Link::is_undecodable)
    }

    /// Returns the number of workers in this mesh's world, and the rank of this worker.
    pub fn world(&self) -> World {
        self.shared.world
    }

    /// Leaves a world that has lost a worker, so that this worker can take part in another rendezvous. The others
    /// receive everything that was sent before. They report this worker's disconnect with the reason
    /// [`LEFT`](crate::LEFT).
    pub fn leave(&self) {
        self.shared.close(&Frame::Leave);
    }

    /// Sets whether the work of the world has ended. If it has, replacements of failed workers are rejected, because
    /// there will be no other rendezvous.
    pub fn set_finished(&self, finished: bool) {
        self.shared.set_finished(finished);
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
        self.reclaim();
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

    fn leaves_machine(&self, worker: usize) -> bool {
        self.shared.link(worker).is_some_and(Link::leaves_machine)
    }

    fn partial_message(&self, worker: usize) -> Option<PartialMessage> {
        self.shared.link(worker)?.partial_message()
    }

    fn extend_shutdown_wait(&self, patience: Duration) {
        self.shared.extend_shutdown_wait(patience);
    }

    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.shared.poll(patience, is_there)
    }

    fn shares_memory(&self) -> bool {
        self.shared.shares_memory
    }

    fn exchange(&self, head: &[u8], bodies: &mut [Option<Bytes>]) -> Option<usize> {
        self.shared.exchange(head, bodies)
    }

    fn close(&self) {
        self.shared.close(&Frame::Goodbye);
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.close();
        if let Some(background) = self.background.take() {
            // The thread exits by the deadline of the shutdown wait.
            let _ = background.join();
        }
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mesh({})", self.shared.world)
    }
}
