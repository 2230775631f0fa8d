//! The rendezvous of the members of one process: each contributes the fingerprint of its call and a payload, and gets
//! all payloads.

use crate::group::Session;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Signal, linger, lock};
use bytes::Bytes;
use distribute_cluster::{Blame, Deadline, Fingerprint, Presence, Standing};
use distribute_log::heard;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The value that a member brings to a rendezvous.
pub type Payload = Arc<dyn Any + Send + Sync>;

type Outcome = Result<Exchanged, Arc<Blame>>;

/// The result of a round for each member.
#[derive(Clone)]
pub struct Exchanged {
    /// The payloads of this process's members, in the order of ranks.
    pub payloads: Arc<Vec<Payload>>,
    /// The result of the delegate and the other processes; `None` without a delegate.
    pub made: Option<Payload>,
}

/// Called on the last member to arrive, for all members of its process: carries the call to the other processes.
pub type Delegate<'a> =
    dyn Fn(&[Payload], &Session, Vec<Standing>, Duration) -> Result<Payload, Arc<Blame>> + 'a;

/// Members meet in rounds. A round ends when every member waits in it or is gone, at the latest at the deadline. If all
/// members made the same call they get all payloads, otherwise they all get the same [`Blame`].
///
/// After a failed round the next one starts clean. Only a missed deadline ends the run, because the late member would
/// arrive in the others' next round instead of the one they gave up.
///
/// If other processes take part in a call, the last member to arrive is the delegate: it talks to them for all members
/// of this process, without holding the lock. The others wait for it past their own deadlines, since it has deadlines
/// too.
///
/// No payload is dropped under the lock, because dropping it runs user code.
pub struct Rendezvous {
    state: Mutex<State>,
    changed: Signal,
    /// A copy of `State::round`, so that members can spin without the lock.
    round: AtomicU64,
}

struct State {
    step: u64,
    /// The traffic of this run with other processes, if there are any.
    session: Option<Arc<Session>>,
    /// The timeout of each member that waits in a call in which other processes take part.
    beyond: Vec<Option<Duration>>,
    /// Whether a member is talking to other processes for all members of this one.
    delegated: bool,
    standings: Vec<Standing>,
    payloads: Vec<Option<Payload>>,
    round: u64,
    /// The outcome of the round that each member waited in, until it has read it. Each has its own: while one sleeps,
    /// the others may already have abandoned the next round at its deadline.
    outcomes: Vec<Option<Outcome>>,
    /// The error of the round whose deadline passed; it ends the run.
    missed: Option<Arc<Blame>>,
}

impl State {
    fn take_payloads(&mut self) -> Arc<Vec<Payload>> {
        Arc::new(self.payloads.iter_mut().filter_map(Option::take).collect())
    }
}

/// See [`Rendezvous::in_group_call`].
pub(super) struct InGroupCall<'a>(&'a Rendezvous);

impl Drop for InGroupCall<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).delegated = false;
    }
}

/// The interval at which members check for their delegate after their own deadline.
const LOOK: Duration = Duration::from_secs(1);

impl Rendezvous {
    /// A rendezvous of `size` members.
    pub fn new(size: usize) -> Self {
        let state = State {
            step: 0,
            session: None,
            beyond: vec![None; size],
            delegated: false,
            standings: (0..size).map(Standing::running).collect(),
            payloads: vec![None; size],
            round: 0,
            outcomes: vec![None; size],
            missed: None,
        };
        Self { state: Mutex::new(state), changed: Signal::new(), round: AtomicU64::new(0) }
    }

    /// Begins a run: all members are present and have made no call. Must not be called while a member waits.
    ///
    /// Member 0 has the global id `first`; `session` is the run's traffic with other processes, if there are any.
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
        state.payloads.iter_mut().for_each(|payload| *payload = None);
        state.outcomes.iter_mut().for_each(|outcome| *outcome = None);
        state.missed = None;
    }

    /// Waits at most `timeout` for all other members, and gives the payloads of all in the order of ranks. With a
    /// `delegate` other processes take part; it is called on one member of each process.
    ///
    /// # Errors
    /// The same [`Blame`] on every member if members made different calls, or one is gone or late.
    pub fn arrive(
        &self,
        rank: usize,
        call: Fingerprint,
        payload: Payload,
        timeout: Duration,
        delegate: Option<&Delegate<'_>>,
    ) -> Result<Exchanged, Arc<Blame>> {
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
        state.payloads[rank] = Some(payload);
        state.beyond[rank] = delegate.map(|_| timeout);
        let round = state.round;
        (state, _unused) = self.settle(state, delegate);
        if state.round == round {
            drop(state);
            // Once, before it sleeps: while it yields, which lasts milliseconds if other programs keep the cores, the
            // deadline does not come nearer.
            linger(|| self.round.load(Ordering::Acquire) != round);
            state = lock(&self.state);
        }
        loop {
            if let Some(outcome) = state.outcomes[rank].take() {
                return outcome;
            }
            if state.delegated && deadline.has_passed() {
                // The delegate's own deadlines end this wait.
                deadline = Deadline::after(LOOK);
            }
            state = self.changed.wait(state, &mut deadline);
            if state.round == round && !state.delegated && deadline.has_passed() {
                let blame;
                (state, blame, _unused) = self.miss(state, timeout);
                // Without the lock: a slow logger must not keep the others from their deadlines.
                drop(state);
                heard(|| tracing::error!(step = blame.step, culprits = ?blame.culprits, "{blame}"));
                state = lock(&self.state);
            }
        }
    }

    /// Records that a member's closure is over, and reports it to members that wait for it now or later.
    pub fn leave(&self, rank: usize, failed: bool) {
        let _unused;
        let mut state = lock(&self.state);
        state.standings[rank].presence = if failed { Presence::Failed } else { Presence::Returned };
        let payload = state.payloads[rank].take();
        let (state, payloads) = self.settle(state, None);
        _unused = (payload, payloads);
        drop(state);
    }

    /// The standing of each member, for logs.
    pub fn standings(&self) -> Vec<Standing> {
        lock(&self.state).standings.clone()
    }

    /// While the result lives, one member talks to other processes outside of a round, and the others wait for it past
    /// their deadlines.
    pub(super) fn in_group_call(&self) -> InGroupCall<'_> {
        lock(&self.state).delegated = true;
        InGroupCall(self)
    }

    /// Ends the round if every member waits or is gone. Gives back what must be dropped without the lock.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        delegate: Option<&Delegate<'_>>,
    ) -> (MutexGuard<'a, State>, Vec<Option<Payload>>) {
        if state.delegated || !state.standings.iter().all(Standing::is_settled) {
            return (state, Vec::new());
        }
        if state.standings.iter().all(Standing::is_gone) {
            // Not kept while the team is idle: the others learn that this process has ended when nothing holds it any
            // more.
            if let Some(session) = state.session.take() {
                let standings = state.standings.clone();
                drop(state);
                session.leave(standings);
                drop(session);
                state = lock(&self.state);
            }
            return (state, Vec::new());
        }
        let timeout = state.beyond.iter().flatten().max().copied();
        let outcome;
        (state, outcome) = match (state.session.clone(), timeout) {
            (Some(session), Some(timeout)) => self.call_group(state, &session, timeout, delegate),
            _ => match Blame::judge(state.step, &state.standings) {
                Some(blame) => {
                    let (state, blame) = self.tell(state, Arc::new(blame));
                    (state, Err(blame))
                }
                None => {
                    let payloads = state.take_payloads();
                    (state, Ok(Exchanged { payloads, made: None }))
                }
            },
        };
        let unused = self.end(&mut state, outcome);
        (state, unused)
    }

    /// Makes the call to the other processes for all members of this one, without the lock.
    fn call_group<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        session: &Arc<Session>,
        timeout: Duration,
        delegate: Option<&Delegate<'_>>,
    ) -> (MutexGuard<'a, State>, Outcome) {
        state.delegated = true;
        let standings = state.standings.clone();
        let payloads = if Standing::all_agree(&standings) { state.take_payloads() } else { Arc::default() };
        drop(state);
        let spoken = catch_unwind(AssertUnwindSafe(|| match delegate {
            Some(delegate) if Standing::all_agree(&standings) => {
                delegate(&payloads, session, standings.clone(), timeout).map(Some)
            }
            _ => session.all_to_all(standings.clone(), |_| Bytes::new(), timeout).map(|_| None),
        }));
        let mut state = lock(&self.state);
        state.delegated = false;
        let outcome = match spoken {
            Ok(Ok(made)) => Ok(Exchanged { payloads, made }),
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

    /// A call of this process's members alone has failed. Other processes, which made it by themselves and may wait for
    /// these members in what follows, are told why: the run is over for all of them. Gives the error that it ends with,
    /// which is another process's if that has failed before.
    fn tell<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut blame: Arc<Blame>,
    ) -> (MutexGuard<'a, State>, Arc<Blame>) {
        if let Some(session) = state.session.clone() {
            state.delegated = true;
            drop(state);
            blame = session.abort(blame);
            state = lock(&self.state);
            state.delegated = false;
            state.missed = Some(blame.clone());
        }
        (state, blame)
    }

    /// Ends the round because a deadline has passed while members still run.
    fn miss<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Duration,
    ) -> (MutexGuard<'a, State>, Arc<Blame>, Vec<Option<Payload>>) {
        let is_beyond = state.beyond.iter().any(Option::is_some);
        let session = state.session.clone().filter(|_| is_beyond);
        let mut outcome = Ok(());
        if let Some(session) = session {
            let spoken;
            (state, spoken) = self.call_group(state, &session, timeout, None);
            outcome = spoken.map(drop);
        }
        let blame;
        (state, blame) = match outcome {
            Err(blame) => (state, blame),
            Ok(()) => {
                // A certain fault takes precedence over the guess that somebody is stuck.
                let certain = Blame::judge(state.step, &state.standings);
                let late = || Blame::late(state.step, &state.standings, timeout);
                let blame = Arc::new(certain.unwrap_or_else(late));
                self.tell(state, blame)
            }
        };
        state.missed = Some(blame.clone());
        let unused = self.end(&mut state, Err(blame.clone()));
        (state, blame, unused)
    }

    fn end(&self, state: &mut State, outcome: Outcome) -> Vec<Option<Payload>> {
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
        let unused = state.payloads.iter_mut().map(Option::take).collect();
        state.round += 1;
        self.round.store(state.round, Ordering::Release);
        self.changed.notify(state);
        unused
    }
}
