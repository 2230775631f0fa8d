//! Where members of one process meet: each brings what it is doing and an offer, all get all offers.

use crate::sync::{AtomicU64, Mutex, Ordering, Signal, linger, lock};
use distribute_cluster::{Blame, Deadline, Fingerprint, Presence, Standing};
use distribute_log::heard;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// What a member brings to a meeting.
pub type Offer = Arc<dyn Any + Send + Sync>;

type Outcome = Result<Arc<Vec<Offer>>, Arc<Blame>>;

/// Members meet in rounds. A round ends when every member waits in it or is gone: with all offers if all make the
/// same call, else with one [`Blame`] for everybody. It ends at the deadline at the latest.
///
/// A failed round costs only itself: the next one starts clean. Only a missed deadline ends the session, because the
/// late member would meet the others' next call instead of the one they gave up.
///
/// Nothing that a member offers is dropped under the lock: that would run code of others.
pub struct Meeting {
    state: Mutex<State>,
    changed: Signal,
    /// `State::round`, to linger on without the lock.
    round: AtomicU64,
}

struct State {
    step: u64,
    standings: Vec<Standing>,
    offers: Vec<Option<Offer>>,
    round: u64,
    /// How the round ended in which a member waited, until it has read that. One for each: while one sleeps, the
    /// others may already have given up the next round at its deadline.
    outcomes: Vec<Option<Outcome>>,
    /// Ends the session: the error of the round whose deadline passed.
    missed: Option<Arc<Blame>>,
}

impl Meeting {
    /// A meeting of `size` members.
    pub fn new(size: usize) -> Self {
        let state = State {
            step: 0,
            standings: vec![Standing::running(); size],
            offers: vec![None; size],
            round: 0,
            outcomes: vec![None; size],
            missed: None,
        };
        Self { state: Mutex::new(state), changed: Signal::new(), round: AtomicU64::new(0) }
    }

    /// Begins a session: all members are there and have done nothing. Only while nobody is in the meeting.
    pub fn open(&self, step: u64) {
        let mut state = lock(&self.state);
        state.step = step;
        // `fill` would clone what it writes, in a call of its own: a twentieth of an empty step.
        state.standings.iter_mut().for_each(|standing| *standing = Standing::running());
        state.offers.iter_mut().for_each(|offer| *offer = None);
        state.outcomes.iter_mut().for_each(|outcome| *outcome = None);
        state.missed = None;
    }

    /// Waits for all other members, at most `timeout`, and gets everybody's offers in the order of ranks.
    ///
    /// # Errors
    /// The same [`Blame`] on every member: members made different calls, one is gone, or one is late.
    pub fn meet(
        &self,
        rank: usize,
        call: Fingerprint,
        offer: Offer,
        timeout: Duration,
    ) -> Result<Arc<Vec<Offer>>, Arc<Blame>> {
        let mut deadline = Deadline::after(timeout);
        // Declared before the guard, so dropped after it.
        let mut _unused = Vec::new();
        tracing::trace!(replica = rank, %call, "meets");
        let _waiting = tracing::trace_span!("waiting", %call).entered();
        let mut state = lock(&self.state);
        if let Some(blame) = &state.missed {
            return Err(blame.clone());
        }
        state.standings[rank].presence = Presence::Waiting(call);
        state.offers[rank] = Some(offer);
        let round = state.round;
        _unused = self.settle(&mut state);
        loop {
            if let Some(outcome) = state.outcomes[rank].take() {
                return outcome;
            }
            drop(state);
            linger(|| self.round.load(Ordering::Acquire) != round);
            state = lock(&self.state);
            if state.round == round {
                state = self.changed.wait(state, &mut deadline);
            }
            if state.round == round && deadline.has_passed() {
                // A fault that is certain already comes before the guess that somebody is stuck.
                let certain = Blame::judge(state.step, &state.standings);
                let blame = certain.unwrap_or_else(|| Blame::late(state.step, &state.standings, timeout));
                let blame = Arc::new(blame);
                state.missed = Some(blame.clone());
                _unused = self.end(&mut state, Err(blame.clone()));
                // Whoever writes the log must not keep the others from their deadlines.
                drop(state);
                heard(|| tracing::error!(step = blame.step, culprits = ?blame.culprits, "{blame}"));
                state = lock(&self.state);
            }
        }
    }

    /// A member's closure is over: whoever waits for it, or comes to wait for it, is told.
    pub fn leave(&self, rank: usize, failed: bool) {
        let _unused;
        let mut state = lock(&self.state);
        state.standings[rank].presence = if failed { Presence::Failed } else { Presence::Returned };
        _unused = (state.offers[rank].take(), self.settle(&mut state));
        drop(state);
    }

    /// Where everybody stands, for the log.
    pub fn standings(&self) -> Vec<Standing> {
        lock(&self.state).standings.clone()
    }

    /// Ends the round if every member waits or is gone. Gives what has to be dropped without the lock.
    fn settle(&self, state: &mut State) -> Vec<Option<Offer>> {
        let all_settled = state.standings.iter().all(Standing::is_settled);
        let all_gone = state.standings.iter().all(Standing::is_gone);
        if !all_settled || all_gone {
            return Vec::new();
        }
        let outcome = match Blame::judge(state.step, &state.standings) {
            Some(blame) => Err(Arc::new(blame)),
            None => Ok(Arc::new(state.offers.iter_mut().filter_map(Option::take).collect())),
        };
        self.end(state, outcome)
    }

    fn end(&self, state: &mut State, outcome: Outcome) -> Vec<Option<Offer>> {
        for (standing, mine) in state.standings.iter_mut().zip(&mut state.outcomes) {
            if !matches!(standing.presence, Presence::Waiting(_)) {
                continue;
            }
            if let Presence::Waiting(call) = std::mem::replace(&mut standing.presence, Presence::Running)
                && outcome.is_ok()
                && !call.continues
            {
                standing.completed += 1;
                standing.last = Some(call);
            }
            *mine = Some(outcome.clone());
        }
        let unused = state.offers.iter_mut().map(Option::take).collect();
        state.round += 1;
        self.round.store(state.round, Ordering::Release);
        self.changed.notify(state);
        unused
    }
}
