//! Where members of one process meet: each brings what it is doing and an offer, all get all offers.

use crate::group::Session;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Signal, linger, lock};
use bytes::Bytes;
use distribute_cluster::{Blame, Deadline, Fingerprint, Presence, Standing};
use distribute_log::heard;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What a member brings to a meeting.
pub type Offer = Arc<dyn Any + Send + Sync>;

type Outcome = Result<Met, Arc<Blame>>;

/// What members get from a round.
#[derive(Clone)]
pub struct Met {
    /// What each member of this process has brought, in the order of ranks.
    pub offers: Arc<Vec<Offer>>,
    /// What the delegate has made of them with other processes, where there are any.
    pub made: Option<Offer>,
}

/// What the last to arrive does for all members of its process, with those of others.
pub type Delegate<'a> = dyn Fn(&[Offer], &Session, Vec<Standing>, Duration) -> Result<Offer, Arc<Blame>> + 'a;

/// Members meet in rounds. A round ends when every member waits in it or is gone: with all offers if all make the
/// same call, else with one [`Blame`] for everybody. It ends at the deadline at the latest.
///
/// A failed round costs only itself: the next one starts clean. Only a missed deadline ends the session, because the
/// late member would meet the others' next call instead of the one they gave up.
///
/// Where other processes take part in a call, the last to arrive speaks for all members of this one, without the lock,
/// while the others wait for it: it has deadlines of its own.
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
    /// The other processes of this run, where there are any.
    session: Option<Arc<Session>>,
    /// Those members that wait in a call in which other processes take part, and how long they wait at most.
    beyond: Vec<Option<Duration>>,
    /// A member speaks with other processes for all of this one.
    delegated: bool,
    standings: Vec<Standing>,
    offers: Vec<Option<Offer>>,
    round: u64,
    /// How the round ended in which a member waited, until it has read that. One for each: while one sleeps, the
    /// others may already have given up the next round at its deadline.
    outcomes: Vec<Option<Outcome>>,
    /// Ends the session: the error of the round whose deadline passed.
    missed: Option<Arc<Blame>>,
}

impl State {
    fn take_offers(&mut self) -> Arc<Vec<Offer>> {
        Arc::new(self.offers.iter_mut().filter_map(Option::take).collect())
    }
}

/// See [`Meeting::speaking`].
pub(super) struct Speaking<'a>(&'a Meeting);

impl Drop for Speaking<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).delegated = false;
    }
}

/// How often members look whether their delegate is back, after their own deadline.
const LOOK: Duration = Duration::from_secs(1);

impl Meeting {
    /// A meeting of `size` members.
    pub fn new(size: usize) -> Self {
        let state = State {
            step: 0,
            session: None,
            beyond: vec![None; size],
            delegated: false,
            standings: (0..size).map(Standing::running).collect(),
            offers: vec![None; size],
            round: 0,
            outcomes: vec![None; size],
            missed: None,
        };
        Self { state: Mutex::new(state), changed: Signal::new(), round: AtomicU64::new(0) }
    }

    /// Begins a run: all members are there and have done nothing. Only while nobody is in the meeting.
    ///
    /// Member 0 has the global id `first`; `session` is the run's traffic with other processes, where there are any.
    pub fn open(&self, step: u64, first: usize, session: Option<Arc<Session>>) {
        let mut state = lock(&self.state);
        state.step = step;
        state.session = session;
        state.delegated = false;
        // `fill` would clone what it writes, in a call of its own: a twentieth of an empty step.
        for (rank, standing) in state.standings.iter_mut().enumerate() {
            *standing = Standing::running(first + rank);
        }
        state.beyond.iter_mut().for_each(|beyond| *beyond = None);
        state.offers.iter_mut().for_each(|offer| *offer = None);
        state.outcomes.iter_mut().for_each(|outcome| *outcome = None);
        state.missed = None;
    }

    /// Ends a run with other processes, when all members are gone.
    pub fn close(&self) {
        let session = lock(&self.state).session.take();
        // Without the lock: it may be the last to hold the connections.
        drop(session);
    }

    /// Waits for all other members, at most `timeout`, and gets everybody's offers in the order of ranks. With a
    /// `delegate` other processes take part; it is called on one member of each.
    ///
    /// # Errors
    /// The same [`Blame`] on every member: members made different calls, one is gone, or one is late.
    pub fn meet(
        &self,
        rank: usize,
        call: Fingerprint,
        offer: Offer,
        timeout: Duration,
        delegate: Option<&Delegate<'_>>,
    ) -> Result<Met, Arc<Blame>> {
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
        state.beyond[rank] = delegate.map(|_| timeout);
        let round = state.round;
        (state, _unused) = self.settle(state, delegate);
        loop {
            if let Some(outcome) = state.outcomes[rank].take() {
                return outcome;
            }
            drop(state);
            linger(|| self.round.load(Ordering::Acquire) != round);
            state = lock(&self.state);
            if state.round == round {
                if state.delegated && deadline.has_passed() {
                    // The delegate's deadlines end this.
                    deadline = Deadline::after(LOOK);
                }
                state = self.changed.wait(state, &mut deadline);
            }
            if state.round == round && !state.delegated && deadline.has_passed() {
                let blame;
                (state, blame, _unused) = self.miss(state, timeout);
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
        let offer = state.offers[rank].take();
        let (state, offers) = self.settle(state, None);
        _unused = (offer, offers);
        drop(state);
    }

    /// Where everybody stands, for the log.
    pub fn standings(&self) -> Vec<Standing> {
        lock(&self.state).standings.clone()
    }

    /// While this lasts, one member speaks with other processes for all, outside of a round: those who wait for it wait on.
    pub(super) fn speaking(&self) -> Speaking<'_> {
        lock(&self.state).delegated = true;
        Speaking(self)
    }

    /// Ends the round if every member waits or is gone. Gives what has to be dropped without the lock.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        delegate: Option<&Delegate<'_>>,
    ) -> (MutexGuard<'a, State>, Vec<Option<Offer>>) {
        if state.delegated || !state.standings.iter().all(Standing::is_settled) {
            return (state, Vec::new());
        }
        if state.standings.iter().all(Standing::is_gone) {
            if let Some(session) = state.session.clone() {
                let standings = state.standings.clone();
                drop(state);
                session.leave(standings);
                state = lock(&self.state);
            }
            return (state, Vec::new());
        }
        let timeout = state.beyond.iter().flatten().max().copied();
        let outcome;
        (state, outcome) = match (state.session.clone(), timeout) {
            (Some(session), Some(timeout)) => self.speak(state, &session, timeout, delegate),
            _ => match Blame::judge(state.step, &state.standings) {
                Some(blame) => self.tell(state, Arc::new(blame)),
                None => {
                    let offers = state.take_offers();
                    (state, Ok(Met { offers, made: None }))
                }
            },
        };
        let unused = self.end(&mut state, outcome);
        (state, unused)
    }

    /// Speaks with other processes for all members of this one, without the lock.
    fn speak<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        session: &Arc<Session>,
        timeout: Duration,
        delegate: Option<&Delegate<'_>>,
    ) -> (MutexGuard<'a, State>, Outcome) {
        state.delegated = true;
        let standings = state.standings.clone();
        let offers = match Standing::all_agree(&standings) {
            true => state.take_offers(),
            false => Arc::default(),
        };
        drop(state);
        let spoken = catch_unwind(AssertUnwindSafe(|| match delegate {
            Some(delegate) if Standing::all_agree(&standings) => {
                delegate(&offers, session, standings.clone(), timeout).map(Some)
            }
            _ => session.swap(standings.clone(), |_| Bytes::new(), timeout).map(|_| None),
        }));
        let mut state = lock(&self.state);
        state.delegated = false;
        let outcome = match spoken {
            Ok(Ok(made)) => Ok(Met { offers, made }),
            Ok(Err(blame)) => {
                if session.is_over() {
                    state.missed = Some(blame.clone());
                }
                Err(blame)
            }
            Err(panic) => {
                let call = standings.iter().find_map(Standing::call).cloned();
                let failed = standings
                    .first()
                    .zip(call)
                    .map(|(first, call)| Arc::new(Blame::failed(state.step, first.replica, &call)));
                if let Some(blame) = failed {
                    let unused = self.end(&mut state, Err(blame));
                    drop(state);
                    drop(unused);
                }
                resume_unwind(panic)
            }
        };
        (state, outcome)
    }

    /// A call of this process's members alone has failed. Other processes, which made it by themselves and may wait for these
    /// members in what comes of it, are told why: the run is over for all of them. Which error it is, if others have one, too.
    fn tell<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut blame: Arc<Blame>,
    ) -> (MutexGuard<'a, State>, Outcome) {
        if let Some(session) = state.session.clone() {
            state.delegated = true;
            drop(state);
            blame = session.abandon(blame);
            state = lock(&self.state);
            state.delegated = false;
            state.missed = Some(blame.clone());
        }
        (state, Err(blame))
    }

    /// The deadline has passed while members still run.
    fn miss<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Duration,
    ) -> (MutexGuard<'a, State>, Arc<Blame>, Vec<Option<Offer>>) {
        let is_beyond = state.beyond.iter().any(Option::is_some);
        let session = state.session.clone().filter(|_| is_beyond);
        let mut outcome = Ok(());
        if let Some(session) = session {
            let spoken;
            (state, spoken) = self.speak(state, &session, timeout, None);
            outcome = spoken.map(drop);
        }
        let blame = match outcome {
            Err(blame) => blame,
            Ok(()) => {
                // A fault that is certain already comes before the guess that somebody is stuck.
                let certain = Blame::judge(state.step, &state.standings);
                let late = || Blame::late(state.step, &state.standings, timeout);
                let blame = Arc::new(certain.unwrap_or_else(late));
                let told;
                (state, told) = self.tell(state, blame.clone());
                told.err().unwrap_or(blame)
            }
        };
        state.missed = Some(blame.clone());
        let unused = self.end(&mut state, Err(blame.clone()));
        (state, blame, unused)
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
        state.beyond.fill(None);
        let unused = state.offers.iter_mut().map(Option::take).collect();
        state.round += 1;
        self.round.store(state.round, Ordering::Release);
        self.changed.notify(state);
        unused
    }
}
