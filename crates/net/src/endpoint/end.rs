//! One end of a connection.

use crate::link::Link;
use crate::mesh::RendezvousResult;
use crate::stream::Stream;
use crate::wire::Decoder;
use crate::{Mesh, Message, PollOutcome, Receiver, Region, Settings, Transport};
use distribute_cluster::{Task, World};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The index of the side that was connected to.
pub(super) const CALLED: usize = 0;
/// The index of the side that has connected.
pub(super) const CALLING: usize = 1;

/// One end of a connection between two tasks.
///
/// Both sides send messages and heartbeats. A disconnect is reported once, after everything that was received from the
/// other side. In a [`Receiver`], worker 0 is the side that was connected to, and worker 1 is the side that has
/// connected.
///
/// Dropping an endpoint sends a final message and waits until the other side has received everything. The wait ends
/// early if no bytes are transferred for [`Settings::shutdown_idle_timeout`], or after [`Settings::max_shutdown_wait`].
pub struct Endpoint {
    mesh: Mesh,
    other: usize,
    peer: Task,
    address: String,
}

impl Endpoint {
    pub(super) fn new(
        stream: Stream,
        me: usize,
        peer: Task,
        address: String,
        receiver: Arc<dyn Receiver>,
        settings: Settings,
    ) -> io::Result<Self> {
        let other = CALLED + CALLING - me;
        let world = World::new(2, me, 1).map_err(|error| io::Error::other(error.to_string()))?;
        let link = Link::new(other, stream, Decoder::new(settings.limits));
        // Both ends may be on this machine, and each has a waiting thread.
        let met = RendezvousResult { crowded: true, ..RendezvousResult::new(world, vec![link], settings) };
        let mesh = Mesh::new(met, receiver)?;
        Ok(Self { mesh, other, peer, address })
    }

    /// Returns the task at the other end: the task that calls or the task that was called. The handshake has checked
    /// that the other side may act as this task, as far as the job's credentials allow.
    pub fn peer(&self) -> &Task {
        &self.peer
    }

    /// Returns the address of the other end.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a message without waiting: see [`Transport::send`].
    pub fn send(&self, message: Message) {
        self.mesh.send(self.other, message);
    }

    /// Returns a region of shared memory for a message, or `None` if the ends share no memory: see
    /// [`Transport::memory`].
    pub fn memory(&self, len: usize) -> Option<Region> {
        self.mesh.memory(len)
    }

    /// Reclaims memory that the other side has read and released. This also happens in each call of
    /// [`memory`](Self::memory), and with each heartbeat.
    pub fn reclaim(&self) {
        self.mesh.reclaim();
    }

    /// Polls the sockets on the calling thread: see [`Transport::poll`].
    pub fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        self.mesh.poll(patience, is_there)
    }

    /// Returns whether the other side has sent bytes that are not valid frames. This is known before its disconnect is
    /// reported.
    pub fn is_undecodable(&self) -> bool {
        self.mesh.is_undecodable(self.other)
    }

    /// Closes the connection gracefully: see [`Transport::close`].
    pub fn close(&self) {
        self.mesh.close();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({} at {})", self.peer, self.address)
    }
}
