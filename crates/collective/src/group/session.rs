//! The traffic of workers in one step or between steps.

use super::early::{EarlySend, Received};
use super::inbox::Event;
use super::protocol::{Action, Ending, Protocol};
use super::workers::Whereabouts;
use super::{Frame, Group, Said, SessionId};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use bytes::Bytes;
use distribute_cluster::flight_recorder::Ticket;
use distribute_cluster::{Blame, Deadline, Standing, World, fnv1a};
use distribute_net::Arriving;
use std::sync::Arc;
use std::time::Duration;

/// The traffic of one step, or of all calls between steps, kept apart from that of all others.
///
/// It is used by one thread at a time: the one that acts for all replicas of its worker. What is done when is decided
/// by a [`Protocol`].
#[derive(Debug)]
pub struct Session {
    group: Group,
    world: World,
    step: AtomicU64,
    state: Mutex<State>,
    /// The places of the workers of this world, for errors.
    whereabouts: Whereabouts,
    /// Data that is received outside its calls.
    received: Received,
}

#[derive(Debug)]
struct State {
    protocol: Protocol,
    /// The latest call, which may have further rounds.
    call: Option<Ticket>,
}

impl Group {
    /// Opens the next session of a name. It is the same session on all workers that have opened this name equally
    /// often. `step` is for errors.
    pub fn open(&self, name: &str, step: u64) -> Session {
        self.open_at(name, self.next_number(name), step)
    }

    /// The number that the next session of a name has here.
    pub fn next_number(&self, name: &str) -> u64 {
        self.inbox.next_number(fnv1a(name.bytes()))
    }

    /// Opens a session of a name by a number that all workers have agreed on, which is none of an earlier one's.
    pub fn open_at(&self, name: &str, number: u64, step: u64) -> Session {
        Session::new(self.clone(), self.inbox.open_at(fnv1a(name.bytes()), number), step)
    }
}

impl Session {
    fn new(group: Group, id: SessionId, step: u64) -> Self {
        let world = group.world();
        let state = State { protocol: Protocol::new(world, id), call: None };
        let (received, whereabouts) = (Received::new(&group, id), group.whereabouts());
        Self { group, world, step: AtomicU64::new(step), state: Mutex::new(state), whereabouts, received }
    }

    /// Returns the number of workers, and which one this is.
    pub fn world(&self) -> World {
        self.world
    }

    /// The number of the step, for errors.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Returns a sender of vectors before the call that all replicas of all workers make next. What is sent before a
    /// call that fails is dropped.
    pub fn early_send(&self) -> EarlySend {
        let protocol = &lock(&self.state).protocol;
        EarlySend::new(self.group.clone(), protocol.session(), protocol.rounds())
    }

    pub(super) fn received(&self) -> &Received {
        &self.received
    }

    /// Another number of the step, where the session lasts longer than one.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Sends every other worker the call of this one's replicas and its data, and returns the data that each sent to
    /// this worker, if all replicas of all workers make the same call. The entry of this worker itself is empty.
    ///
    /// # Errors
    /// The same [`Blame`] on every worker if they make different calls, or if one is gone, lost, or does not arrive
    /// within `timeout`. A late or lost worker ends the session: its later rounds fail the same way.
    pub fn all_to_all(
        &self,
        standings: Vec<Standing>,
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.call(false, standings, body, timeout)
    }

    /// Like [`all_to_all`](Self::all_to_all), in a further round of the same call.
    ///
    /// # Errors
    /// The errors of [`all_to_all`](Self::all_to_all).
    pub(super) fn next_round(
        &self,
        standings: Vec<Standing>,
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.call(true, standings, body, timeout)
    }

    /// A round of a call, recorded.
    fn call(
        &self,
        continues: bool,
        standings: Vec<Standing>,
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let mut state = lock(&self.state);
        let State { protocol, call } = &mut *state;
        if let Some(blame) = protocol.over() {
            return Err(self.located(blame.clone()));
        }
        let of = call.filter(|_| continues);
        *call = self.group.recorder.begin(self.step(), &standings, of);
        protocol.begin(self.step(), standings, timeout);
        let made = self.round(protocol, body, timeout).map_err(|blame| self.located(blame));
        if let Some(call) = *call {
            self.group.recorder.end(call, made.is_ok());
        }
        drop(state);
        if let Err(blame) = &made {
            self.group.recorder.tell(self.world().worker(), blame);
        }
        made
    }

    /// The round that has begun, until it is decided.
    fn round(
        &self,
        protocol: &mut Protocol,
        mut body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let mut deadline = Deadline::after(timeout);
        self.group.transport.stay(timeout);
        if let Some(digest) = protocol.call() {
            for worker in self.group.others() {
                self.group.send(worker, protocol.frame(Said::Call { digest, body: body(worker) }));
            }
        }
        let Group { inbox, transport, .. } = &self.group;
        loop {
            self.hear_all(protocol);
            match protocol.next_action() {
                Action::Say(frame) => self.say(&frame),
                Action::End(made) => return made,
                Action::Wait(patience) => {
                    deadline = patience.map_or(deadline, Deadline::after);
                    self.group.recorder.await_all(protocol.silent());
                    match inbox.next(protocol.session(), protocol.lost(), &mut deadline, &**transport) {
                        Event::Expired => self.expire(protocol),
                        event => self.hear(protocol, event),
                    }
                }
            }
        }
    }

    /// Aborts the next call of the others, because this worker has failed outside a call: they get one [`Blame`] that
    /// names its replicas, whose `standings` these are, and all can make the call after that.
    ///
    /// The others learn it when they make their call; this worker does not wait for them, unless it has aborted the
    /// calls before as well: then at most for `timeout`.
    pub fn abort_call(&self, standings: Vec<Standing>, timeout: Duration) {
        let mut state = lock(&self.state);
        let protocol = &mut state.protocol;
        match protocol.abort_call(self.step(), standings, timeout) {
            Some(frame) => self.say(&frame),
            // What comes of it is known already: this worker has failed.
            None => drop(self.round(protocol, |_| Bytes::new(), timeout)),
        }
    }

    /// Returns how many calls this worker has aborted.
    pub fn aborted_calls(&self) -> u64 {
        lock(&self.state).protocol.aborted_calls()
    }

    /// Ends the session for all workers, for a reason of this one's own. Returns that of another worker if it has ended
    /// the session before.
    pub fn abort(&self, blame: Arc<Blame>) -> Arc<Blame> {
        let mut state = lock(&self.state);
        let protocol = &mut state.protocol;
        if let Some(over) = protocol.over() {
            return self.located(over.clone());
        }
        self.hear_all(protocol);
        if let Some(verdict) = protocol.abort(blame.clone()) {
            self.say(&verdict);
        }
        let blame = self.located(protocol.over().cloned().unwrap_or(blame));
        drop(state);
        self.group.recorder.tell(self.world().worker(), &blame);
        blame
    }

    /// Whether the session is over because a worker was late or lost.
    pub fn is_over(&self) -> bool {
        lock(&self.state).protocol.over().is_some()
    }

    /// Tells the others that all replicas of this worker are gone, so that they don't wait for them.
    pub fn leave(&self, standings: Vec<Standing>) {
        let left = lock(&self.state).protocol.leave(standings);
        self.say(&left);
    }

    /// Waits until the replicas of all other workers have left, after those of this one have returned and
    /// [left](Self::leave).
    ///
    /// # Errors
    /// The same [`Blame`] as on the others, where these wait in a call that the replicas of this worker have left out.
    /// A worker that is late or lost is no error: this one has done its part, and its next call names the other.
    pub fn await_leave(&self, timeout: Duration) -> Result<(), Arc<Blame>> {
        let mut state = lock(&self.state);
        let protocol = &mut state.protocol;
        let Group { inbox, transport, .. } = &self.group;
        let mut deadline = Deadline::after(timeout);
        let made = loop {
            match protocol.ending(self.step(), timeout) {
                Ending::Closed => return Ok(()),
                Ending::LeftOut => break self.round(protocol, |_| Bytes::new(), timeout).map(drop),
                Ending::Open => {
                    match inbox.next(protocol.session(), protocol.lost(), &mut deadline, &**transport) {
                        Event::Expired => return Ok(()),
                        event => self.hear(protocol, event),
                    }
                }
            }
        };
        drop(state);
        let made = made.map_err(|blame| self.located(blame));
        if let Err(blame) = &made {
            self.group.recorder.tell(self.world().worker(), blame);
        }
        made
    }

    /// The same, and where the workers of the culprits are, if that is known.
    fn located(&self, blame: Arc<Blame>) -> Arc<Blame> {
        if !self.whereabouts.are_known() {
            return blame;
        }
        let process = |worker| self.whereabouts.process(worker);
        Arc::new(Arc::unwrap_or_clone(blame).located(self.world, process))
    }

    /// Takes everything that has come.
    fn hear_all(&self, protocol: &mut Protocol) {
        while let Some(event) = self.group.inbox.poll(protocol.session(), protocol.lost()) {
            self.hear(protocol, event);
        }
    }

    fn hear(&self, protocol: &mut Protocol, event: Event) {
        match event {
            Event::Frame(from, frame) => {
                if let Err(reason) = protocol.hear(from, frame) {
                    self.group.inbox.lose(from, reason);
                }
            }
            Event::Lost(worker, reason) => protocol.lose(worker, reason),
            Event::Expired => {}
        }
    }

    /// Ends the wait, and records which workers are late by their links: a part of a message of theirs has come.
    fn expire(&self, protocol: &mut Protocol) {
        for worker in protocol.silent().collect::<Vec<_>>() {
            if let Some(Arriving { received, length }) = self.group.transport.arriving(worker) {
                protocol.receives(worker, (received, length));
            }
        }
        protocol.expire();
    }

    fn say(&self, frame: &Frame) {
        for worker in self.group.others() {
            self.group.send(worker, frame.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Inbox;
    use distribute_cluster::{Fault, Fingerprint, Operation};
    use distribute_net::{Drive, Message, Transport};
    use distribute_testing::watched;
    use std::panic::Location;

    /// Links over which a part of worker 1's message has come, and no more comes.
    #[derive(Debug)]
    struct Slow(Option<Arriving>);

    impl Transport for Slow {
        fn send(&self, _to: usize, _message: Message) {}
        fn arriving(&self, worker: usize) -> Option<Arriving> {
            self.0.filter(|_| worker == 1)
        }
        fn drive(&self, _patience: Duration, _is_there: &dyn Fn() -> bool) -> Drive {
            Drive::Never
        }
        fn close(&self) {}
    }

    #[test]
    fn who_is_late_by_its_link_alone_is_not_blamed_for_no_call() {
        watched(|| {
            let arriving = Arriving { received: 3_100_000, length: 10_000_000 };
            for (arriving, says) in [
                (
                    Some(arriving),
                    "replica 1 has not come (its data is still on the way: 3.1 MB of a message of 10.0 MB",
                ),
                (None, "replica 1 has not come (it has made no call in this step); look for a loop"),
            ] {
                let world = World::new(2, 0, 1).unwrap();
                let group = Group::new(world, Arc::new(Slow(arriving)), Inbox::new(2));
                let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
                let mine = vec![Standing::waiting(0, call)];
                let session = group.open("slow", 1);
                let blame =
                    session.all_to_all(mine, |_| Bytes::new(), Duration::from_millis(50)).unwrap_err();
                assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Late, &[1][..]));
                assert!(blame.to_string().contains(says), "{blame}");
            }
        });
    }
}
