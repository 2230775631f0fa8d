//! The traffic of workers in one step or between steps.

use super::inbox::Event;
use super::round::{Next, Round};
use super::{Frame, Group, Said, SessionId};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use bytes::Bytes;
use distribute_cluster::flight_recorder::Ticket;
use distribute_cluster::{Blame, Deadline, Fingerprint, Presence, Standing, World};
use distribute_net::Message;
use std::sync::Arc;
use std::time::Duration;

/// How long the worker that judges waits for the standings of the others after a deadline has passed. The others wait
/// twice as long for its verdict.
const GRACE: Duration = Duration::from_millis(500);

/// How long to wait for the verdict on a worker that is lost. Whoever judges may not have noticed, and be past the round.
const VERDICT: Duration = Duration::from_millis(100);

/// So many calls in a row a worker declines without waiting for the others.
const DECLINES: u64 = 2;

/// How many rounds a worker may be ahead of another: it may have declined some, is in the next one, and may give that up.
const AHEAD: u64 = DECLINES + 2;

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
    /// How many rounds this worker has declined, and how many of them since it took part in one.
    declined: u64,
    in_a_row: u64,
    /// The latest call, which may go on in further rounds.
    call: Option<Ticket>,
    /// Frames of rounds that this worker has not begun.
    early: Vec<(usize, Frame)>,
    /// For each worker whose replicas are gone, their standings.
    left: Vec<Option<Vec<Standing>>>,
    /// For each worker, whether it has become unreachable.
    lost: Vec<bool>,
    /// Why the session is over, if it is.
    over: Option<Arc<Blame>>,
}

impl Session {
    pub(super) fn new(group: Group, id: SessionId, step: u64) -> Self {
        let workers = group.world.workers();
        let state = State { left: vec![None; workers], lost: vec![false; workers], ..State::default() };
        Self { group, id, step: AtomicU64::new(step), state: Mutex::new(state) }
    }

    /// How many workers there are, and which one this is.
    pub fn world(&self) -> World {
        self.group.world
    }

    /// The number of the step, for errors.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
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
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.call(false, standings, body, timeout)
    }

    /// Like [`swap`](Self::swap), in a further round of the same call.
    ///
    /// # Errors
    /// Those of [`swap`](Self::swap).
    pub(super) fn go_on(
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
        goes_on: bool,
        standings: Vec<Standing>,
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let mut state = lock(&self.state);
        if let Some(blame) = &state.over {
            return Err(blame.clone());
        }
        let of = state.call.filter(|_| goes_on);
        state.call = self.group.recorder.begin(self.step(), &standings, of);
        let made = self.round(&mut state, standings, body, timeout);
        if let Some(call) = state.call {
            self.group.recorder.end(call, made.is_ok());
        }
        drop(state);
        if let Err(blame) = &made {
            self.group.recorder.tell(self.world().worker(), blame);
        }
        made
    }

    /// A round, until it is decided.
    fn round(
        &self,
        state: &mut State,
        standings: Vec<Standing>,
        mut body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        (state.round, state.in_a_row) = (state.round + 1, 0);
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
        self.catch_up(state, &mut round);
        let (mut grace, mut last) = (false, false);
        loop {
            // Hear everything that has arrived before deciding: workers that have given up waiting sent their call first.
            while let Some(event) = self.group.inbox.poll(self.id, &state.lost) {
                self.hear(state, &mut round, event);
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
                        event => self.hear(state, &mut round, event),
                    }
                }
            }
        }
    }

    /// Takes no part in the next call of the others, since this worker has failed outside of one: they get one [`Blame`] that
    /// names its replicas, whose `standings` these are, and all can make the call after that.
    ///
    /// The others learn it when they make their call; this worker does not wait for them, unless it has declined the calls
    /// before as well: then at most for `timeout`.
    pub fn decline(&self, mut standings: Vec<Standing>, timeout: Duration) {
        for standing in &mut standings {
            standing.presence = Presence::Failed;
        }
        let mut state = lock(&self.state);
        if state.over.is_some() {
            return;
        }
        state.declined += 1;
        if state.in_a_row == DECLINES {
            // What comes of it is known already: this worker has failed.
            let _ = self.round(&mut state, standings, |_| Bytes::new(), timeout);
            return;
        }
        (state.round, state.in_a_row) = (state.round + 1, state.in_a_row + 1);
        let (step, expired, late) = (self.step(), None, Vec::new());
        self.say(state.round, &Said::Standings { standings, step, expired, late });
    }

    /// How many calls this worker has declined.
    pub fn declined(&self) -> u64 {
        lock(&self.state).declined
    }

    /// Ends the session for all workers, for a reason of this one's own; gives that of another worker that has ended it before.
    pub fn abandon(&self, blame: Arc<Blame>) -> Arc<Blame> {
        let mut state = lock(&self.state);
        let is_new = state.over.is_none();
        if is_new {
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
        let blame = state.over.get_or_insert(blame).clone();
        drop(state);
        if is_new {
            self.group.recorder.tell(self.world().worker(), &blame);
        }
        blame
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
