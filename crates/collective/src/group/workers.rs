//! The processes of a world, as one of them sees them.

use super::recorder::Recorder;
use super::renewal::{Renewable, Where};
use super::summing::Summing;
use super::{Buffers, Frame, Inbox};
use distribute_cluster::{Process, RecordedCall, Task, World};
use distribute_net::{JoinError, Message, NativeSum, Rendezvous, Transport};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// The processes of a world, as seen by one of them.
#[derive(Clone, Debug)]
pub struct Group {
    /// The world of workers that cannot re-form.
    fixed: World,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) inbox: Inbox,
    pub(super) recorder: Arc<Recorder>,
    pub(super) buffers: Buffers,
    /// The transport, where the workers can meet again.
    renewable: Option<Arc<Renewable>>,
    /// The tasks of the cluster, as errors name them.
    tasks: Arc<[Task]>,
}

/// The tasks and addresses of the workers of a world, while it lasts.
#[derive(Clone, Debug, Default)]
pub(super) struct Whereabouts(Option<(Arc<Where>, Arc<[Task]>)>);

impl Whereabouts {
    pub fn are_known(&self) -> bool {
        self.0.is_some()
    }

    pub fn process(&self, worker: usize) -> Option<Process> {
        let (world, tasks) = self.0.as_ref()?;
        let task = tasks.get(*world.places.get(worker)?)?.clone();
        Some(Process { task, address: world.addresses.get(worker)?.clone() })
    }
}

impl Group {
    /// The processes of `world`, when all of them have joined, or [enough](Rendezvous::quorum): then
    /// [`world`](Self::world) is of these.
    ///
    /// # Errors
    /// [`JoinError`], which names workers that are missing.
    pub fn join(world: World, rendezvous: Rendezvous) -> Result<Self, JoinError> {
        let inbox = Inbox::new(world.workers());
        let links = Arc::new(Renewable::new(rendezvous.join(Arc::new(inbox.clone()))?));
        Ok(Self { renewable: Some(links.clone()), ..Self::new(world, links, inbox) })
    }

    /// Leaves the world, in which a worker was lost or late, and waits until all workers of the next one have joined:
    /// those that are left, and others in the places of those that are not. Everything that holds this group goes on
    /// with the new links; its sessions are over. Where that goes wrong, all others are lost to it; it can be tried
    /// again.
    ///
    /// # Errors
    /// [`JoinError`], which names workers that are missing.
    pub fn rejoin(&self, rendezvous: Rendezvous) -> Result<(), JoinError> {
        let Some(links) = &self.renewable else {
            return Err(JoinError::System(io::Error::other(
                "they were linked by something that cannot do it again",
            )));
        };
        links.leave();
        self.inbox.renew();
        match rendezvous.join(Arc::new(self.inbox.clone())) {
            Ok(mesh) => links.renew(mesh),
            Err(error) => {
                let alone = format!("the workers have not met again: {error}");
                self.others().for_each(|worker| self.inbox.lose(worker, alone.clone()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the generation of the world: 1 at first, and one more each time the group has re-formed.
    pub fn generation(&self) -> u64 {
        self.renewable.as_ref().map_or(1, |links| links.generation())
    }

    /// Whether what the workers have met for has ended on all of them, so that they don't meet again: who comes in the
    /// place of one that is lost from here on is told so, and refused.
    pub fn set_over(&self, over: bool) {
        self.renewable.iter().for_each(|links| links.set_over(over));
    }

    /// The workers of `world`. The transport gives what it receives to `inbox`.
    pub fn new(world: World, transport: Arc<dyn Transport>, inbox: Inbox) -> Self {
        let buffers = Buffers::new(transport.clone());
        let (fixed, recorder) = (world, Arc::new(Recorder::new()));
        Self { fixed, transport, inbox, recorder, buffers, renewable: None, tasks: Arc::default() }
    }

    /// Sets the tasks by which errors name the workers, with their addresses: those of all places of the cluster, the
    /// same on all workers.
    pub fn tasks(mut self, tasks: impl IntoIterator<Item = Task>) -> Self {
        self.tasks = tasks.into_iter().collect();
        self
    }

    /// Returns the task and address of a worker in the cluster, if known: its rank in the world may differ.
    pub fn process(&self, worker: usize) -> Option<Process> {
        self.whereabouts().process(worker)
    }

    pub(super) fn whereabouts(&self) -> Whereabouts {
        let links = self.renewable.as_ref().filter(|_| !self.tasks.is_empty());
        Whereabouts(links.map(|links| (links.places(), self.tasks.clone())))
    }

    /// Sets a library that sums in [`Order::Fast`](super::Order::Fast), set up for these workers next to their links,
    /// such as NCCL. All of them use it, or none. After the group has re-formed it is not used any more, because it
    /// knows the workers of before.
    pub fn with_native_sum(mut self, library: Arc<dyn NativeSum>) -> Self {
        self.transport = Arc::new(Summing::new(self.transport, library, self.renewable.as_ref()));
        self
    }

    /// The first worker that is lost to this one, if any is.
    pub fn first_lost(&self) -> Option<usize> {
        self.others().find(|worker| self.inbox.lost(*worker).is_some())
    }

    /// Returns the number of workers, and which one this is. After the group has re-formed, the world may be another
    /// one.
    pub fn world(&self) -> World {
        self.renewable.as_ref().map_or(self.fixed, |links| links.world())
    }

    /// Returns the number of new workers that wait until the group re-forms. The leader of an elastic cluster knows
    /// it.
    pub fn waiting(&self) -> usize {
        self.renewable.as_ref().map_or(0, |links| links.waiting())
    }

    /// The places in the cluster of those that are expected where the workers meet again: of all of the present world
    /// but those that are `leaving`, or `present` those of it alone that are not lost; and of those that wait.
    pub fn expected(&self, present: bool, leaving: &[usize]) -> BTreeSet<usize> {
        let Some(links) = &self.renewable else { return BTreeSet::new() };
        let world = links.places();
        let there = world.places.iter().copied().enumerate();
        let stays = |worker: &usize| !leaving.contains(worker);
        let there =
            there.filter(|(worker, _)| stays(worker) && (!present || self.inbox.lost(*worker).is_none()));
        there.map(|(_, place)| place).chain(links.places_waiting()).collect()
    }

    /// Whether one waits that was in another world as late as this one: the leader of this one had just started, and
    /// knew nothing of that.
    pub fn is_supplanted(&self) -> bool {
        self.renewable.as_ref().is_some_and(|links| links.is_supplanted())
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

    /// Reports to the other workers that this one has exited, even if the group is still in use: they need not wait
    /// for it.
    pub fn end(&self) {
        self.transport.close();
    }

    /// Returns the last calls of this worker in all sessions, the latest first.
    ///
    /// With every [`Blame`](distribute_cluster::Blame) they are also given out as an event of [`tracing`]: where a
    /// worker was late or lost as a warning, which goes to standard error in a program without a subscriber, else at
    /// level INFO.
    pub fn last_calls(&self) -> Vec<RecordedCall> {
        self.recorder.calls()
    }

    /// The call of all workers that is under way on this one, if one is, and the workers of which nothing has been
    /// heard in it: for people who look. It may be over by the time that this returns.
    pub fn awaited(&self) -> Option<(RecordedCall, Vec<usize>)> {
        self.recorder.awaited()
    }

    /// Returns the reason why a worker is lost to this one, if it is.
    pub fn lost(&self, worker: usize) -> Option<String> {
        self.inbox.lost(worker)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let world = self.world();
        let me = world.worker();
        (0..world.workers()).filter(move |worker| *worker != me)
    }
}
