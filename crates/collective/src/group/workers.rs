//! The processes of a world, as one of them sees them.

use super::recorder::Recorder;
use super::{Buffers, Frame, Inbox};
use distribute_cluster::{RecordedCall, World};
use distribute_net::{JoinError, Message, Rendezvous, Transport};
use std::sync::Arc;

/// The processes of a world, as seen by one of them.
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) world: World,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) inbox: Inbox,
    pub(super) recorder: Arc<Recorder>,
    pub(super) buffers: Buffers,
}

impl Group {
    /// The processes of `world`, when all of them have joined.
    ///
    /// # Errors
    /// [`JoinError`], which names workers that are missing.
    pub fn join(world: World, rendezvous: Rendezvous) -> Result<Self, JoinError> {
        let inbox = Inbox::new(world.workers());
        let mesh = rendezvous.join(Arc::new(inbox.clone()))?;
        Ok(Self::new(world, Arc::new(mesh), inbox))
    }

    /// The workers of `world`. The transport gives what it receives to `inbox`.
    pub fn new(world: World, transport: Arc<dyn Transport>, inbox: Inbox) -> Self {
        let buffers = Buffers::new(transport.clone());
        Self { world, transport, inbox, recorder: Arc::new(Recorder::new()), buffers }
    }

    /// How many workers there are, and which one this is.
    pub fn world(&self) -> World {
        self.world
    }

    /// Memory for what is sent to the others.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub(super) fn send(&self, to: usize, frame: Frame) {
        match frame.encode() {
            Ok((head, body)) => self.transport.send(to, Message { head, body }),
            // Only out of memory; the others get what they can be told.
            Err(error) => self.inbox.lose(to, format!("a message to it cannot be written: {error}")),
        }
    }

    /// Tells the other workers that this one has ended, whoever still holds the group: they need not wait for it.
    pub fn end(&self) {
        self.transport.close();
    }

    /// What this worker did last: its calls in all sessions, the latest first.
    ///
    /// With every [`Blame`](distribute_cluster::Blame) they are also given out as an event of [`tracing`]: where a worker was late or lost as a warning,
    /// which goes to standard error in a program without a subscriber, else at level INFO.
    pub fn last_calls(&self) -> Vec<RecordedCall> {
        self.recorder.calls()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.world.worker();
        (0..self.world.workers()).filter(move |worker| *worker != me)
    }
}
