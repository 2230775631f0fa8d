//! [`Session`]: the calls of all workers in one step, or between steps.

// - INV-31: `abort_call`, which `GroupCall`, `Strategy::abort_peers_on_err` and `merge_call` use. Tests:
//   `collective/tests/it/group.rs`, `collective/tests/it/worlds.rs`, `clusters/multi_worker/faults.rs`.

use super::checksums::BodySums;
use super::early::{EarlyReceiver, EarlySend};
use super::exchange::Attempt;
use super::inbox::Event;
use super::protocol::{Action, Ending, Protocol};
use super::workers::WorkerDirectory;
use super::{Content, Frame, Group, SessionId};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use bytes::Bytes;
use distribute_cluster::flight_recorder::Ticket;
use distribute_cluster::{Blame, Deadline, ReplicaStatus, World, fnv1a};
use distribute_net::PartialMessage;
use std::sync::Arc;
use std::time::Duration;

/// The calls of all workers in one step, or between steps. Its messages are separate from those of all other sessions.
///
/// One thread at a time uses a session: the thread that makes the calls on behalf of all replicas of its worker. A
/// [`Protocol`] decides the next action.
#[derive(Debug)]
pub struct Session {
    group: Group,
    world: World,
    /// The generation of the group in which the session was opened.
    generation: u64,
    step: AtomicU64,
    state: Mutex<State>,
    /// The tasks and addresses of the workers of this session's world, for errors.
    directory: WorkerDirectory,
    /// The receiver of vectors that are sent before their call.
    early_receiver: EarlyReceiver,
}

/// The reason for the loss of a worker that sends no checksums to one that requires them.
pub(super) const WITHOUT_CHECKSUMS: &str = "its messages have no checksums, which this worker requires: set the same \
                                            checksums on all workers (DISTRIBUTE_CHECKSUMS)";

#[derive(Debug)]
pub(super) struct State {
    pub(super) protocol: Protocol,
    /// The record of the latest call, which may have more rounds.
    pub(super) call: Option<Ticket>,
    /// The number of [events](super::Inbox::events) of the inbox at which none was found for this session.
    pub(super) seen_events: u64,
}

impl Group {
    /// Opens the next session with this name. Workers that have opened the name the same number of times open the same
    /// session. `step` is the step to report in errors.
    pub fn open(&self, name: &str, step: u64) -> Session {
        self.open_at(name, self.next_number(name), step)
    }

    /// Returns the sequence number of the next session with this name on this worker.
    pub fn next_number(&self, name: &str) -> u64 {
        self.inbox.next_number(fnv1a(name.bytes()))
    }

    /// Opens the session with this name and `number`, on which all workers must have agreed. No session with this name
    /// and the same or a later number may have been opened before.
    pub fn open_at(&self, name: &str, number: u64, step: u64) -> Session {
        Session::new(self.clone(), self.inbox.open_at(fnv1a(name.bytes()), number), step)
    }
}

impl Session {
    fn new(group: Group, id: SessionId, step: u64) -> Self {
        let world = group.world();
        let mut protocol = Protocol::new(world, id);
        protocol.set_repeated_calls(std::mem::take(&mut *lock(&group.repeated_calls)));
        let state = State { protocol, call: None, seen_events: 0 };
        let (early_receiver, directory) = (EarlyReceiver::new(&group, id), group.directory());
        let (generation, step, state) = (group.generation(), AtomicU64::new(step), Mutex::new(state));
        Self { group, world, generation, step, state, directory, early_receiver }
    }

    /// Returns the number of workers, and the index of this one.
    pub fn world(&self) -> World {
        self.world
    }

    /// Returns the current step, for errors.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Returns a sender of vectors for the next call of this session. If that call fails, the vectors are dropped.
    pub fn early_send(&self) -> EarlySend {
        let protocol = &lock(&self.state).protocol;
        EarlySend::new(self.group.clone(), protocol.session(), protocol.rounds())
    }

    /// Returns whether the group has not re-formed since the session was opened.
    pub(super) fn is_of_this_world(&self) -> bool {
        self.group.generation() == self.generation
    }

    pub(super) fn early_receiver(&self) -> &EarlyReceiver {
        &self.early_receiver
    }

    /// Sets the current step of a session that lasts longer than one step.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Sends the call of this worker's replicas, with its data, to every other worker. If all replicas of all workers
    /// make the same call, returns the data that each worker sent to this one, by rank. The entry of this worker is
    /// empty.
    ///
    /// # Errors
    /// Returns the same [`Blame`] on every worker if the calls differ, or if a worker has exited, is lost, or does not
    /// make the call within `timeout`. If a worker timed out or is lost, the session is over: its later rounds fail
    /// with the same error.
    pub fn all_to_all(
        &self,
        statuses: Vec<ReplicaStatus>,
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.call(false, None, &statuses, body, timeout)
    }

    /// Makes the first round of a call like [`all_to_all`](Self::all_to_all). If `part` is given, each replica makes
    /// this part of the call in its status.
    ///
    /// # Errors
    /// Returns the errors of [`all_to_all`](Self::all_to_all).
    pub(super) fn first_round(
        &self,
        part: Option<&str>,
        statuses: &[ReplicaStatus],
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.call(false, part, statuses, body, timeout)
    }

    /// Makes another round of the same call, like [`first_round`](Self::first_round).
    ///
    /// # Errors
    /// Returns the errors of [`all_to_all`](Self::all_to_all).
    pub(super) fn next_round(
        &self,
        part: &str,
        statuses: &[ReplicaStatus],
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.call(true, Some(part), statuses, body, timeout)
    }

    /// Executes and records a round of a call. If the round fails, logs this worker's latest calls.
    fn call(
        &self,
        continues: bool,
        part: Option<&str>,
        statuses: &[ReplicaStatus],
        mut body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let mut state = lock(&self.state);
        if let Some(blame) = state.protocol.over() {
            return Err(self.with_locations(blame.clone()));
        }
        let of = state.call.filter(|_| continues);
        let began = self.group.recorder.now();
        let attempt = self.exchange(&mut state, (of, began), part, statuses, &mut body, timeout);
        if let Attempt::Complete(bodies) = attempt {
            return Ok(bodies);
        }
        let State { protocol, call, .. } = &mut *state;
        let mut statuses = statuses.to_vec();
        if let Some(part) = part {
            protocol.enter_part(&mut statuses, part);
        }
        *call = self.group.recorder.begin(self.step(), &statuses, of, began);
        protocol.begin(self.step(), statuses, timeout);
        match attempt {
            Attempt::Sent(received) => self.receive_calls(protocol, received),
            _ => self.send_call(protocol, body),
        }
        let mut last = None;
        let made = self.round(protocol, timeout, &mut last).map_err(|blame| self.with_locations(blame));
        if let Some(call) = *call {
            self.group.recorder.end(call, made.is_ok(), last);
        }
        drop(state);
        if let Err(blame) = &made {
            self.group.recorder.log_last_calls(self.world().worker(), blame);
        }
        made
    }

    /// Sends the call of the current round, if the replicas agree on one, to every other worker.
    fn send_call(&self, protocol: &Protocol, mut body: impl FnMut(usize) -> Bytes) {
        if let Some(digest) = protocol.call() {
            let sums = &mut BodySums::default();
            for worker in self.others() {
                self.group.send(worker, protocol.frame(Content::Call { digest, body: body(worker) }), sums);
            }
        }
    }

    /// Executes the current round, whose call was sent, until it is decided, and returns its outcome. If this worker
    /// waited for frames, sets `last` to the worker whose frame arrived last.
    fn round(
        &self,
        protocol: &mut Protocol,
        timeout: Duration,
        last: &mut Option<usize>,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let mut deadline = Deadline::after(timeout);
        self.group.transport.extend_shutdown_wait(timeout);
        let Group { inbox, transport, .. } = &self.group;
        loop {
            self.receive_all(protocol);
            match protocol.next_action() {
                Action::Send(frame) => self.send_to_others(&frame),
                Action::End(made) => return made,
                Action::Wait(patience) => {
                    deadline = patience.map_or(deadline, Deadline::after);
                    self.group.recorder.await_all(protocol.silent());
                    match inbox.next(protocol.session(), protocol.lost(), &mut deadline, &**transport) {
                        Event::Expired => self.expire(protocol),
                        event => {
                            if let Event::Frame(from, _) = &event {
                                *last = Some(*from);
                            }
                            self.receive(protocol, event);
                        }
                    }
                }
            }
        }
    }

    /// Aborts the next call of the other workers, because this worker has failed outside a call. The other workers get
    /// a [`Blame`] that names this worker's replicas. Afterwards all workers can make calls again. `statuses` are those
    /// of this worker's replicas.
    ///
    /// The other workers get the error when they make their call, and this worker does not wait for them, unless it has
    /// also aborted the previous two calls. In that case, it waits for at most `timeout`. If the session is already
    /// over, this has no effect.
    pub fn abort_call(&self, statuses: Vec<ReplicaStatus>, timeout: Duration) {
        let mut state = lock(&self.state);
        let protocol = &mut state.protocol;
        match protocol.abort_call(self.step(), statuses, timeout) {
            Some(frame) => self.send_to_others(&frame),
            // The result is already known: this worker has failed.
            None => {
                self.send_call(protocol, |_| Bytes::new());
                drop(self.round(protocol, timeout, &mut None));
            }
        }
    }

    /// Returns the number of calls that this worker has aborted.
    pub fn aborted_calls(&self) -> u64 {
        lock(&self.state).protocol.aborted_calls()
    }

    /// Ends the session on all workers because of `blame`, and logs this worker's latest calls. Has no effect if the
    /// session is already over. Returns the blame with which the session has ended, which may come from another worker.
    pub fn abort(&self, blame: Arc<Blame>) -> Arc<Blame> {
        let mut state = lock(&self.state);
        let protocol = &mut state.protocol;
        if let Some(over) = protocol.over() {
            return self.with_locations(over.clone());
        }
        self.receive_all(protocol);
        if let Some(verdict) = protocol.abort(blame.clone()) {
            self.send_to_others(&verdict);
        }
        let blame = self.with_locations(protocol.over().cloned().unwrap_or(blame));
        drop(state);
        self.group.recorder.log_last_calls(self.world().worker(), &blame);
        blame
    }

    /// Returns whether the session is over because a worker timed out, was lost, or has ended it.
    pub fn is_over(&self) -> bool {
        lock(&self.state).protocol.over().is_some()
    }

    /// Reports to the others that the closures of all replicas of this worker have returned, so that no worker waits
    /// for them.
    pub fn leave(&self, statuses: Vec<ReplicaStatus>) {
        let left = lock(&self.state).protocol.leave(statuses);
        self.send_to_others(&left);
    }

    /// Waits at most `timeout` until the replicas of all other workers have left. Call this after the replicas of this
    /// worker have returned and [left](Self::leave).
    ///
    /// # Errors
    /// Returns the same [`Blame`] as on the other workers if they wait in a call that the replicas of this worker have
    /// skipped. Otherwise returns `Ok`, even if a worker timed out or was lost, because this worker has completed its
    /// part. The error of its next call names the lost worker.
    pub fn await_leave(&self, timeout: Duration) -> Result<(), Arc<Blame>> {
        let mut state = lock(&self.state);
        let protocol = &mut state.protocol;
        let Group { inbox, transport, .. } = &self.group;
        let mut deadline = Deadline::after(timeout);
        let made = loop {
            match protocol.ending(self.step(), timeout) {
                Ending::Closed => return Ok(()),
                Ending::LeftOut => {
                    self.send_call(protocol, |_| Bytes::new());
                    break self.round(protocol, timeout, &mut None).map(drop);
                }
                Ending::Open => {
                    match inbox.next(protocol.session(), protocol.lost(), &mut deadline, &**transport) {
                        Event::Expired => return Ok(()),
                        event => self.receive(protocol, event),
                    }
                }
            }
        };
        drop(state);
        let made = made.map_err(|blame| self.with_locations(blame));
        if let Err(blame) = &made {
            self.group.recorder.log_last_calls(self.world().worker(), blame);
        }
        made
    }

    /// Adds the tasks and addresses of the blamed workers to a blame, if they are known.
    fn with_locations(&self, blame: Arc<Blame>) -> Arc<Blame> {
        if !self.directory.is_known() {
            return blame;
        }
        let process = |worker| self.directory.process(worker);
        Arc::new(Arc::unwrap_or_clone(blame).with_locations(self.world, process))
    }

    /// Processes all frames and losses that have been received.
    fn receive_all(&self, protocol: &mut Protocol) {
        while let Some(event) = self.group.inbox.poll(protocol.session(), protocol.lost()) {
            self.receive(protocol, event);
        }
    }

    fn receive(&self, protocol: &mut Protocol, event: Event) {
        match event {
            // Frames that a worker sent after corrupted data are dropped.
            Event::Frame(from, _) if protocol.lost().get(from) == Some(&true) => {}
            Event::Frame(from, frame) => {
                // INV-104
                if let Some(changed) = frame.changed() {
                    let corruption = changed.between(from, self.world.worker());
                    self.group.inbox.mark_lost(from, corruption.clone());
                    // At once, because frames that it sent after the data may have arrived already.
                    protocol.mark_lost(from, corruption);
                } else if frame.sum.is_none() && self.group.requires_checksums() {
                    self.group.inbox.mark_lost(from, WITHOUT_CHECKSUMS);
                } else if let Err(reason) = protocol.receive(from, frame) {
                    self.group.inbox.mark_lost(from, reason.to_string());
                }
            }
            Event::Lost(worker, reason) => {
                protocol.mark_lost(worker, reason.received_by(self.world.worker()));
            }
            Event::Expired => {}
        }
    }

    /// Records that the deadline has passed, and which silent workers have sent part of a message: they have timed out
    /// because of a slow link.
    fn expire(&self, protocol: &mut Protocol) {
        for worker in protocol.silent().collect::<Vec<_>>() {
            if let Some(PartialMessage { received, length }) = self.group.transport.partial_message(worker) {
                protocol.note_partial(worker, (received, length));
            }
        }
        protocol.expire();
    }

    /// Returns the other workers of the world in which this session was opened.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.world.worker();
        (0..self.world.workers()).filter(move |worker| *worker != me)
    }

    fn send_to_others(&self, frame: &Frame) {
        let sums = &mut BodySums::default();
        for worker in self.others() {
            self.group.send(worker, frame.clone(), sums);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let calls = lock(&self.state).protocol.take_repeated_calls();
        *lock(&self.group.repeated_calls) = calls;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Inbox;
    use distribute_cluster::{Fault, Fingerprint, Operation};
    use distribute_net::{Message, PollOutcome, Transport};
    use distribute_testing::watched;
    use std::panic::Location;

    /// Links over which part of a message of worker 1 has arrived, and no more arrives.
    #[derive(Debug)]
    struct Slow(Option<PartialMessage>);

    impl Transport for Slow {
        fn send(&self, _to: usize, _message: Message) {}
        fn partial_message(&self, worker: usize) -> Option<PartialMessage> {
            self.0.filter(|_| worker == 1)
        }
        fn poll(&self, _patience: Duration, _is_there: &dyn Fn() -> bool) -> PollOutcome {
            PollOutcome::Never
        }
        fn close(&self) {}
    }

    #[test]
    fn a_worker_with_only_a_slow_link_is_not_blamed_for_a_missing_call() {
        watched(|| {
            let arriving = PartialMessage { received: 3_100_000, length: 10_000_000 };
            for (arriving, says) in [
                (
                    Some(arriving),
                    "replica 1 did not arrive (its data is still in transit: 3.1 MB of a message of 10.0 MB",
                ),
                (None, "replica 1 did not arrive (it has made no call in this step); look for a loop"),
            ] {
                let world = World::new(2, 0, 1).unwrap();
                let group = Group::new(world, Arc::new(Slow(arriving)), Inbox::new(2));
                let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
                let mine = vec![ReplicaStatus::waiting(0, call)];
                let session = group.open("slow", 1);
                let blame =
                    session.all_to_all(mine, |_| Bytes::new(), Duration::from_millis(50)).unwrap_err();
                assert_eq!((blame.fault, &blame.culprits[..]), (Fault::TimedOut, &[1][..]));
                assert!(blame.to_string().contains(says), "{blame}");
            }
        });
    }
}
