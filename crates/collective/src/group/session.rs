//! The processes of a world, and their traffic in one step or between steps.

use super::inbox::Event;
use super::round::{Next, Round};
use super::{Buffers, Frame, Inbox, Said, SessionId};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use bytes::Bytes;
use distribute_cluster::{Blame, Deadline, Fingerprint, Standing, World, fnv1a};
use distribute_net::{JoinError, Message, Rendezvous, Transport};
use std::sync::Arc;
use std::time::Duration;

/// How long the worker that judges waits for the standings of the others after a deadline has passed. The others wait
/// twice as long for its verdict.
const GRACE: Duration = Duration::from_millis(500);

/// How long to wait for the verdict on a worker that is lost. Whoever judges may not have noticed, and be past the round.
const VERDICT: Duration = Duration::from_millis(100);

/// How many rounds a worker may be ahead of another: it is in the next one at most, and may give that up.
const AHEAD: u64 = 4;

/// The processes of a world, as seen by one of them.
#[derive(Clone, Debug)]
pub struct Group {
    world: World,
    transport: Arc<dyn Transport>,
    inbox: Inbox,
    buffers: Buffers,
}

/// The traffic of one step, or of all calls between steps, kept apart from that of all others.
///
/// It is used by one thread at a time: the one that acts for all replicas of its worker.
#[derive(Debug)]
pub struct Session {
    group: Group,
    id: SessionId,
    step: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of rounds that have begun.
    round: u64,
    /// Frames of rounds that this worker has not begun.
    early: Vec<(usize, Frame)>,
    /// For each worker whose replicas are gone, their standings.
    left: Vec<Option<Vec<Standing>>>,
    /// For each worker, whether it has become unreachable.
    lost: Vec<bool>,
    /// Why the session is over, if it is.
    over: Option<Arc<Blame>>,
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
        Self { world, transport, inbox, buffers: Buffers::default() }
    }

    /// How many workers there are, and which one this is.
    pub fn world(&self) -> World {
        self.world
    }

    /// Memory for what is sent to the others.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Tells the other workers that this one has ended, whoever still holds the group: they need not wait for it.
    pub fn end(&self) {
        self.transport.close();
    }

    /// Opens the next session of a name. It is the same session on all workers that have opened this name equally often.
    /// `step` is for errors.
    pub fn open(&self, name: &str, step: u64) -> Session {
        self.open_at(name, self.next_number(name), step)
    }

    /// The number that the next session of a name has here.
    pub fn next_number(&self, name: &str) -> u64 {
        self.inbox.next_number(fnv1a(name.bytes()))
    }

    /// Opens a session of a name by a number that all workers have agreed on, which is none of an earlier one's.
    pub fn open_at(&self, name: &str, number: u64, step: u64) -> Session {
        let workers = self.world.workers();
        let state = State { left: vec![None; workers], lost: vec![false; workers], ..State::default() };
        let id = self.inbox.open_at(fnv1a(name.bytes()), number);
        Session { group: self.clone(), id, step: AtomicU64::new(step), state: Mutex::new(state) }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.world.worker();
        (0..self.world.workers()).filter(move |worker| *worker != me)
    }
}

impl Session {
    pub(super) fn buffers(&self) -> &Buffers {
        self.group.buffers()
    }

    /// How many workers there are, and which one this is.
    pub fn world(&self) -> World {
        self.group.world
    }

    /// The number of the step, for errors.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    /// Another number of the step, where the session lasts longer than one.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Sends every other worker the call of this one's replicas and its data, and returns the data that each sent to this
    /// worker, if all replicas of all workers make the same call. The entry of this worker itself is empty.
    ///
    /// # Errors
    /// The same [`Blame`] on every worker if they make different calls, or if one is gone, lost, or does not arrive within
    /// `timeout`. A late or lost worker ends the session: its later rounds fail the same way.
    pub fn swap(
        &self,
        standings: Vec<Standing>,
        mut body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let mut state = lock(&self.state);
        if let Some(blame) = &state.over {
            return Err(blame.clone());
        }
        state.round += 1;
        let mut deadline = Deadline::after(timeout);
        let late = standings.iter().any(|standing| !standing.is_settled());
        let mut round = Round::new(self.group.world, self.step(), standings, timeout);
        if let Some(digest) = round.call().map(Fingerprint::digest) {
            for worker in self.group.others() {
                self.send(worker, state.round, Said::Call { digest, body: body(worker) });
            }
        }
        if late {
            round.expire();
        }
        self.catch_up(&mut state, &mut round);
        let (mut grace, mut last) = (false, false);
        loop {
            // Hear everything that has arrived before deciding: workers that have given up waiting sent their call first.
            while let Some(event) = self.group.inbox.poll(self.id, &state.lost) {
                self.hear(&mut state, &mut round, event);
            }
            if !grace && (round.has_expired() || round.has_lost()) {
                grace = true;
                deadline = Deadline::after(match (round.has_expired(), round.judges()) {
                    (false, _) => VERDICT,
                    (true, true) => GRACE,
                    (true, false) => 2 * GRACE,
                });
            }
            match round.next(last) {
                Next::Agreed(bodies) => return Ok(bodies),
                Next::Say(said) => self.say(state.round, &said),
                Next::Blamed(blame) => return Err(Arc::new(blame)),
                Next::Over { blame, own } => {
                    if own {
                        self.say(state.round, &Said::Verdict(blame.clone()));
                    }
                    let blame = Arc::new(blame);
                    state.over = Some(blame.clone());
                    return Err(blame);
                }
                Next::Wait => {
                    match self.group.inbox.next(self.id, &state.lost, &mut deadline, &*self.group.transport) {
                        Event::Expired if grace => last = true,
                        Event::Expired => round.expire(),
                        event => self.hear(&mut state, &mut round, event),
                    }
                }
            }
        }
    }

    /// Ends the session for all workers, for a reason of this one's own; gives that of another worker that has ended it before.
    pub fn abandon(&self, blame: Arc<Blame>) -> Arc<Blame> {
        let mut state = lock(&self.state);
        if state.over.is_none() {
            let mut arrived: Vec<_> = std::mem::take(&mut state.early);
            while let Some(event) = self.group.inbox.poll(self.id, &state.lost) {
                match event {
                    Event::Frame(from, frame) => arrived.push((from, frame)),
                    Event::Lost(worker, _) => state.lost[worker] = true,
                    Event::Expired => {}
                }
            }
            // Nobody takes part in a round any more: of what has arrived, only a verdict counts.
            let theirs = arrived.into_iter().find_map(|(_, frame)| match frame.said {
                Said::Verdict(blame) => Some(blame),
                _ => None,
            });
            state.round += 1;
            if theirs.is_none() {
                self.say(state.round, &Said::Verdict(Blame::clone(&blame)));
            }
            state.over = theirs.map(Arc::new);
        }
        state.over.get_or_insert(blame).clone()
    }

    /// Whether the session is over because a worker was late or lost.
    pub fn is_over(&self) -> bool {
        lock(&self.state).over.is_some()
    }

    /// Tells the others that all replicas of this worker are gone, so that they don't wait for them.
    pub fn leave(&self, standings: Vec<Standing>) {
        let round = lock(&self.state).round + 1;
        self.say(round, &Said::Left { standings });
    }

    /// Tells a new round what is already known.
    fn catch_up(&self, state: &mut State, round: &mut Round) {
        // What came before somebody left or was lost.
        for (from, frame) in std::mem::take(&mut state.early) {
            self.take(state, round, from, frame);
        }
        for (worker, left) in state.left.iter().enumerate() {
            if let Some(standings) = left {
                round.hear(worker, Said::Left { standings: standings.clone() });
            }
        }
        for (worker, _) in state.lost.iter().enumerate().filter(|(_, lost)| **lost) {
            // In the words of those who learn of it only now.
            round.lose(worker, self.group.inbox.lost(worker).unwrap_or_default());
        }
    }

    fn hear(&self, state: &mut State, round: &mut Round, event: Event) {
        match event {
            Event::Frame(from, frame) => self.take(state, round, from, frame),
            Event::Lost(worker, reason) => {
                state.lost[worker] = true;
                round.lose(worker, reason);
            }
            Event::Expired => {}
        }
    }

    fn take(&self, state: &mut State, round: &mut Round, from: usize, frame: Frame) {
        if frame.round > state.round.saturating_add(AHEAD) {
            let reason = "it has sent a round that it cannot be in: all workers have to run the same program";
            self.group.inbox.lose(from, reason);
            return;
        }
        match &frame.said {
            Said::Left { standings } => {
                if let Some(left) = state.left.get_mut(from) {
                    *left = Some(standings.clone());
                }
                round.hear(from, frame.said);
            }
            // Of a later round: its sender has this one behind it, in which all have agreed then.
            Said::Verdict(_) if frame.round > state.round => state.early.push((from, frame)),
            // The session is over for those who sent it.
            Said::Verdict(_) => round.hear(from, frame.said),
            _ if frame.round > state.round => state.early.push((from, frame)),
            _ if frame.round == state.round => round.hear(from, frame.said),
            // An answer that belongs to a past round.
            _ => {}
        }
    }

    fn say(&self, round: u64, said: &Said) {
        for worker in self.group.others() {
            self.send(worker, round, said.clone());
        }
    }

    fn send(&self, to: usize, round: u64, said: Said) {
        match (Frame { session: self.id, round, said }).encode() {
            Ok((head, body)) => self.group.transport.send(to, Message { head, body }),
            // Only out of memory; the others get what they can be told.
            Err(error) => self.group.inbox.lose(to, format!("a message to it cannot be written: {error}")),
        }
    }
}
