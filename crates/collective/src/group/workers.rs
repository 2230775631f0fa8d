//! [`Group`]: the processes of a world, from the point of view of one of them.

use super::checksums::{BodySums, Checksums};
use super::native_transport::NativeSumTransport;
use super::recorder::{Recorder, Waits};
use super::reformable::{ReformableLinks, WorkerLocations};
use super::repeated_calls::RepeatedCalls;
use super::{Buffers, Frame, Inbox};
use crate::sync::Mutex;
use distribute_cluster::{Process, RecordedCall, Task, World};
use distribute_net::{JoinError, KnownWorkers, LEFT, Message, NativeSum, Rendezvous, Transport};

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// The processes of a world, from the point of view of one of them.
#[derive(Clone, Debug)]
pub struct Group {
    /// The world at the start, which remains the current one if the group cannot re-form.
    initial_world: World,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) inbox: Inbox,
    pub(super) recorder: Arc<Recorder>,
    pub(super) buffers: Buffers,
    /// The calls that the last sessions made, for the next one.
    pub(super) repeated_calls: Arc<Mutex<RepeatedCalls>>,
    /// The links, if the group can re-form.
    reformable: Option<Arc<ReformableLinks>>,
    /// The tasks of the cluster, as errors name them.
    tasks: Arc<[Task]>,
    /// The links on which messages have checksums, if the program has set this.
    checksums: Option<Checksums>,
}

/// The tasks and addresses of the workers of one world, which remain after the group has re-formed. `None` if they are
/// unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerDirectory(Option<(Arc<WorkerLocations>, Arc<[Task]>)>);

impl WorkerDirectory {
    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    pub fn process(&self, worker: usize) -> Option<Process> {
        let (world, tasks) = self.0.as_ref()?;
        let task = tasks.get(*world.positions.get(worker)?)?.clone();
        Some(Process { task, address: world.addresses.get(worker)?.clone() })
    }
}

impl Group {
    /// Waits until all workers of `world`, or [a quorum](Rendezvous::quorum) of them, have joined, and returns their
    /// group. [`world`](Self::world) then returns the world of the workers that have joined.
    ///
    /// # Errors
    /// Returns the errors of [`Rendezvous::join`]. The error at the deadline names the missing workers.
    pub fn join(world: World, rendezvous: Rendezvous) -> Result<Self, JoinError> {
        let inbox = Inbox::new(world.workers());
        let links = Arc::new(ReformableLinks::new(rendezvous.join(Arc::new(inbox.clone()))?));
        Ok(Self { reformable: Some(links.clone()), ..Self::new(world, links, inbox) })
    }

    /// Creates the group of a spare, which is in no world until it [joins one](Self::rejoin). `cluster` is the world of
    /// all workers and spares of the cluster. Until then, `world` is returned as the spare's world. `generation` is
    /// that of the world that is complete without the spare.
    pub fn spare(cluster: World, world: World, generation: u64) -> Self {
        let inbox = Inbox::new(cluster.workers());
        let links = Arc::new(ReformableLinks::spare(world, generation));
        Self { reformable: Some(links.clone()), ..Self::new(world, links, inbox) }
    }

    /// Returns whether this process is a spare that has been in no world yet.
    pub fn is_spare(&self) -> bool {
        self.reformable.as_ref().is_some_and(|links| links.is_spare())
    }

    /// Leaves the world, for example because a worker was lost or timed out, and waits until all workers of the next
    /// world have joined: the remaining workers, and replacements for the others. Everything that refers to this group
    /// then uses the new links. The sessions of the group are over.
    ///
    /// # Errors
    /// Returns the errors of [`Rendezvous::join`], and [`JoinError::System`] if the group cannot re-form. After an
    /// error of the rendezvous, all other workers are lost to this worker, and `rejoin` can be called again.
    pub fn rejoin(&self, rendezvous: Rendezvous) -> Result<(), JoinError> {
        let Some(links) = &self.reformable else {
            return Err(JoinError::System(io::Error::other("their transport cannot be re-formed")));
        };
        links.leave();
        self.inbox.reset();
        match rendezvous.join(Arc::new(self.inbox.clone())) {
            Ok(mesh) => links.replace_mesh(mesh),
            Err(error) => {
                let alone = format!("the group was not re-formed: {error}");
                self.others().for_each(|worker| self.inbox.mark_lost(worker, alone.clone()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the generation of the world. It is 1 in the first world, and incremented each time the group re-forms. A
    /// spare returns the generation of the world that is complete without it.
    pub fn generation(&self) -> u64 {
        self.reformable.as_ref().map_or(1, |links| links.generation())
    }

    /// Sets whether the run has finished on all workers. If it has, the group does not re-form, and workers that
    /// replace lost ones are rejected with this reason.
    pub fn set_finished(&self, finished: bool) {
        self.reformable.iter().for_each(|links| links.set_finished(finished));
    }

    /// Creates the group of the workers of `world`. The transport must add received frames to `inbox`.
    pub fn new(world: World, transport: Arc<dyn Transport>, inbox: Inbox) -> Self {
        let buffers = Buffers::new(transport.clone());
        let (initial_world, recorder) = (world, Arc::new(Recorder::new()));
        let (repeated_calls, reformable, tasks, checksums) = Default::default();
        Self {
            initial_world,
            transport,
            inbox,
            recorder,
            buffers,
            repeated_calls,
            reformable,
            tasks,
            checksums,
        }
    }

    /// Sets the tasks by which errors name the workers, in addition to their addresses. `tasks` contains one entry for
    /// each position in the cluster, and must be the same on all workers.
    pub fn tasks(mut self, tasks: impl IntoIterator<Item = Task>) -> Self {
        self.tasks = tasks.into_iter().collect();
        self
    }

    /// Sets the links on which messages have checksums; [`Checksums::Auto`] by default. The setting must be the same on
    /// all workers: with [`Checksums::Always`], workers that send no checksums are treated as lost.
    pub fn checksums(mut self, checksums: Checksums) -> Self {
        self.checksums = Some(checksums);
        self
    }

    /// Equivalent to [`checksums`](Self::checksums), but has no effect if that was called before.
    pub fn default_checksums(mut self, checksums: Checksums) -> Self {
        self.checksums.get_or_insert(checksums);
        self
    }

    fn has_checksums(&self, worker: usize) -> bool {
        match self.checksums.unwrap_or_default() {
            Checksums::Auto => self.transport.leaves_machine(worker),
            Checksums::Always => true,
            Checksums::Never => false,
        }
    }

    /// Returns whether the messages of all workers must have checksums.
    pub(super) fn requires_checksums(&self) -> bool {
        self.checksums == Some(Checksums::Always)
    }

    /// Returns the task and address of a worker; `None` if they are unknown. The index of the task may differ from the
    /// worker's rank in the world.
    pub fn process(&self, worker: usize) -> Option<Process> {
        self.directory().process(worker)
    }

    pub(super) fn directory(&self) -> WorkerDirectory {
        let links = self.reformable.as_ref().filter(|_| !self.tasks.is_empty());
        WorkerDirectory(links.map(|links| (links.locations(), self.tasks.clone())))
    }

    /// Adds a library that computes sums in [`Order::Fast`](super::Order::Fast), such as NCCL, and that was set up for
    /// these workers. All workers must use it, or none. After the group has re-formed, the library is no longer used,
    /// because it connects the previous workers.
    pub fn with_native_sum(mut self, library: Arc<dyn NativeSum>) -> Self {
        self.transport = Arc::new(NativeSumTransport::new(self.transport, library, self.reformable.as_ref()));
        self
    }

    /// Returns the first worker that is lost to this one; `None` if no worker is.
    pub fn first_lost(&self) -> Option<usize> {
        self.others().find(|worker| self.inbox.lost(*worker).is_some())
    }

    /// Returns the number of workers, and the index of this one. Both may change when the group re-forms.
    pub fn world(&self) -> World {
        self.reformable.as_ref().map_or(self.initial_world, |links| links.world())
    }

    /// Returns the number of new workers that wait until the group re-forms, without spares. Only the leader of an
    /// elastic cluster knows the number; on other workers it is 0.
    pub fn waiting(&self) -> usize {
        self.reformable.as_ref().map_or(0, |links| links.waiting())
    }

    /// Returns the number of spares that wait until a worker is lost. Only the leader knows the number; on other
    /// workers it is 0.
    pub fn spares(&self) -> usize {
        let waiting = self.reformable.as_ref().map_or(0, |links| links.waiting_positions().len());
        waiting.saturating_sub(self.waiting())
    }

    /// Returns the positions in the cluster of the spares that wait until a worker is lost. The result is empty on all
    /// workers but the leader, and if a process waits that is not a spare.
    pub fn spare_positions(&self) -> BTreeSet<usize> {
        let links = self.reformable.as_ref().filter(|links| links.waiting() == 0);
        links.map(|links| links.waiting_positions()).unwrap_or_default()
    }

    /// Returns the position in the cluster of each worker, by rank. The result is empty if the group cannot re-form.
    pub fn positions(&self) -> Vec<usize> {
        self.reformable.as_ref().map(|links| links.locations().positions.clone()).unwrap_or_default()
    }

    /// Sets the number of logical replicas of a worker, until the group re-forms. The others share the rest evenly. All
    /// workers must make this call at the same point. Does nothing if the world cannot have this share.
    pub fn set_share(&self, worker: usize, replicas: usize) {
        self.reformable.iter().for_each(|links| links.set_share(worker, replicas));
    }

    /// Leaves this worker's position to a spare: reports to the other workers that this one has exited. In the next
    /// rendezvous it should take part like a process that has just started.
    pub fn resign(&self) {
        self.reformable.iter().for_each(|links| links.resign());
    }

    /// Returns whether this worker has [resigned](Self::resign) from the current world.
    pub fn has_resigned(&self) -> bool {
        self.reformable.as_ref().is_some_and(|links| links.has_resigned())
    }

    /// Returns the workers to consider when the group re-forms, by their cluster positions: the workers of the current
    /// world whose ranks are not in `leaving`, and waiting workers. A worker that has left to re-form the group counts
    /// as present. If `present` is `true`, lost workers are omitted. The result is empty if the group cannot re-form.
    pub fn known_workers(&self, present: bool, leaving: &[usize]) -> KnownWorkers {
        let Some(links) = &self.reformable else { return KnownWorkers::default() };
        let mut known = KnownWorkers {
            waiting: links.waiting_positions(),
            supplanted: links.is_supplanted(),
            ..KnownWorkers::default()
        };
        for (worker, place) in links.locations().positions.iter().enumerate() {
            let lost = self.inbox.lost(worker);
            if lost.as_deref() == Some(LEFT) {
                known.present.insert(*place);
            } else if leaving.contains(&worker) {
                continue;
            } else if lost.is_none() {
                known.present.insert(*place);
            } else if !present {
                known.lost.insert(*place);
            }
        }
        known
    }

    /// Returns whether another world has replaced this one: a waiting worker was a member of another world, of the same
    /// generation or a later one. This happens if the leader had just started when it formed this world, and did not
    /// know of the other one.
    pub fn is_supplanted(&self) -> bool {
        self.reformable.as_ref().is_some_and(|links| links.is_supplanted())
    }

    /// Returns the pool of memory for messages to other workers.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Sends a frame to a worker. `sums` caches the checksum of the last body, which may also be sent to other workers.
    pub(super) fn send(&self, to: usize, frame: Frame, sums: &mut BodySums) {
        let encoded = if self.has_checksums(to) {
            let sum = sums.sum(&frame);
            frame.encode_with_sum(sum)
        } else {
            frame.encode()
        };
        match encoded {
            Ok((head, body)) => self.transport.send(to, Message { head, body }),
            // This fails only for lack of memory. Messages to other workers may still succeed.
            Err(error) => self.inbox.mark_lost(to, format!("a message to it cannot be written: {error}")),
        }
    }

    /// Reports to the other workers that this worker has exited, so that they do not wait for it, even if the group is
    /// still in use.
    pub fn end(&self) {
        self.transport.close();
    }

    /// Returns the latest calls of this worker in all sessions, newest first.
    ///
    /// When a call fails with a [`Blame`](distribute_cluster::Blame), the latest calls are also logged with
    /// [`tracing`]. If a worker timed out or was lost, or if data arrived changed, they are a warning, which a program
    /// without a subscriber prints to standard error. Otherwise their level is INFO.
    pub fn last_calls(&self) -> Vec<RecordedCall> {
        self.recorder.calls()
    }

    /// Returns the call in progress on this worker, if there is one, and the workers from which nothing has arrived in
    /// it. Use this only for display, because the call may end at any time.
    pub fn awaited(&self) -> Option<(RecordedCall, Vec<usize>)> {
        self.recorder.awaited()
    }

    /// Calls `act` with the time that this worker has spent in exchanges since the last call. The times show which
    /// worker is slow; results must not depend on them.
    pub fn take_waits<T>(&self, act: impl FnOnce(Waits<'_>) -> T) -> T {
        self.recorder.take_waits(act)
    }

    /// Returns the reason why a worker is lost to this one; `None` if it is not lost.
    pub fn lost(&self, worker: usize) -> Option<String> {
        self.inbox.lost(worker)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let world = self.world();
        let me = world.worker();
        (0..world.workers()).filter(move |worker| *worker != me)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Links, local};
    use super::*;

    #[test]
    fn a_default_of_checksums_replaces_no_setting() {
        let group = || local::groups(Links::Memory, 1, 1).unwrap().remove(0);
        for (setting, requires) in
            [(None, true), (Some(Checksums::Never), false), (Some(Checksums::Auto), false)]
        {
            let group = setting.map_or_else(group, |setting| group().checksums(setting));
            assert_eq!(
                group.default_checksums(Checksums::Always).requires_checksums(),
                requires,
                "{setting:?}"
            );
        }
        assert!(!group().requires_checksums());
    }
}
