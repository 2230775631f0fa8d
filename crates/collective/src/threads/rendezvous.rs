//! The rendezvous of the members of one process. Each member contributes the fingerprint of its call and a payload, and
//! gets the payloads of all members.

// - INV-1: a round ends with payloads only if `Blame::decide` finds no culprit. Tests: `collective/tests/team.rs`,
//   `cluster/src/blame.rs`.

use crate::group::Session;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Signal, linger, lock};
use bytes::Bytes;
use distribute_cluster::{Blame, Deadline, Fingerprint, Presence, ReplicaStatus};
use distribute_log::warn_or_stderr;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A value that a member contributes to a rendezvous, and that all members get.
pub type Payload = Arc<dyn Any + Send + Sync>;

type Outcome = Result<Exchanged, Arc<Blame>>;

/// The result of a round, which all members get.
#[derive(Clone)]
pub struct Exchanged {
    /// The payloads of all members of this process, in the order of ranks.
    pub payloads: Arc<Vec<Payload>>,
    /// The result of the delegate's call to the other processes; `None` if no delegate was called.
    pub delegate_result: Option<Payload>,
}

/// A function that makes the call to the other processes on behalf of all members of this process. It is called on the
/// last member to arrive.
pub type Delegate<'a> =
    dyn Fn(&[Payload], &Session, Vec<ReplicaStatus>, Duration) -> Result<Payload, Arc<Blame>> + 'a;

/// An exchange of payloads between members, in rounds. A round ends when every member waits in it or has exited, or at
/// the deadline. If all members made the same call, they get all payloads. Otherwise they all get the same [`Blame`].
///
/// A failed round does not affect the next one, unless it ends the run. A missed deadline ends the run, because the
/// member that missed it would otherwise arrive in the next round of the others. With other processes, the run also
/// ends when their session is over. It also ends when a call fails among the members of this process, because the other
/// processes may be waiting for them.
///
/// If a call involves other processes, the last member to arrive is the delegate: it makes the call to them on behalf
/// of all members of this process, without holding the lock. The other members wait for the delegate even after their
/// own deadlines, because its call has a deadline as well.
///
/// No payload is dropped while the lock is held, because dropping it may run user code.
pub struct Rendezvous {
    state: Mutex<State>,
    changed: Signal,
    /// A copy of `State::round`, which members read without the lock while they spin.
    round: AtomicU64,
}

struct State {
    step: u64,
    /// The session of this run with other processes, if there are any.
    session: Option<Arc<Session>>,
    /// The timeout of each member that waits in a call with other processes.
    group_timeouts: Vec<Option<Duration>>,
    /// Whether a member is making a call to other processes on behalf of all members of this process.
    delegate_is_busy: bool,
    statuses: Vec<ReplicaStatus>,
    payloads: Vec<Option<Payload>>,
    round: u64,
    /// The outcome of the round in which each member waited, until the member has read it. Outcomes are stored by
    /// member, because the others may have finished the next round before a member wakes.
    outcomes: Vec<Option<Outcome>>,
    /// The error that has ended the run, if there is one. See [`Rendezvous`] for what ends a run.
    over: Option<Arc<Blame>>,
}

impl State {
    fn take_payloads(&mut self) -> Arc<Vec<Payload>> {
        Arc::new(self.payloads.iter_mut().filter_map(Option::take).collect())
    }
}

/// A guard while a member makes a call to other processes: see [`Rendezvous::in_group_call`].
pub(super) struct InGroupCall<'a>(&'a Rendezvous);

impl Drop for InGroupCall<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).delegate_is_busy = false;
    }
}

/// The interval at which members check whether their delegate has finished, after their own deadline.
const DELEGATE_CHECK: Duration = Duration::from_secs(1);

impl Rendezvous {
    /// Creates a rendezvous of `size` members.
    pub fn new(size: usize) -> Self {
        let state = State {
            step: 0,
            session: None,
            group_timeouts: vec![None; size],
            delegate_is_busy: false,
            statuses: (0..size).map(ReplicaStatus::running).collect(),
            payloads: vec![None; size],
            round: 0,
            outcomes: vec![None; size],
            over: None,
        };
        Self { state: Mutex::new(state), changed: Signal::new(), round: AtomicU64::new(0) }
    }

    /// Begins a run, in which all members are present and have made no call. Do not call this while a member waits.
    ///
    /// `first` is the global id of member 0, and `session` is the run's session with other processes, if there are any.
    pub fn open(&self, step: u64, first: usize, session: Option<Arc<Session>>) {
        let mut state = lock(&self.state);
        state.step = step;
        state.session = session;
        state.delegate_is_busy = false;
        // `fill` would clone what it writes, in a call of its own: a twentieth of an empty step.
        for (rank, status) in state.statuses.iter_mut().enumerate() {
            *status = ReplicaStatus::running(first + rank);
        }
        state.group_timeouts.iter_mut().for_each(|timeout| *timeout = None);
        state.payloads.iter_mut().for_each(|payload| *payload = None);
        state.outcomes.iter_mut().for_each(|outcome| *outcome = None);
        state.over = None;
    }

    /// Waits at most `timeout` for all other members, and returns the payloads of all members in the order of ranks. If
    /// there is a `delegate`, the call involves other processes, and `delegate` is called on one member of each
    /// process.
    ///
    /// # Errors
    /// Returns the same [`Blame`] on every member if members made different calls, if a member has exited or timed out,
    /// or if `delegate` fails.
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
        if let Some(blame) = &state.over {
            return Err(blame.clone());
        }
        state.statuses[rank].presence = Presence::Waiting(call);
        state.payloads[rank] = Some(payload);
        state.group_timeouts[rank] = delegate.map(|_| timeout);
        let round = state.round;
        (state, _unused) = self.try_complete(state, delegate);
        if state.round == round {
            drop(state);
            // Only once, before this thread sleeps: the time does not count toward the deadline, and can be
            // milliseconds if other programs keep the cores busy.
            linger(|| self.round.load(Ordering::Acquire) != round);
            state = lock(&self.state);
        }
        loop {
            if let Some(outcome) = state.outcomes[rank].take() {
                return outcome;
            }
            if state.delegate_is_busy && deadline.has_passed() {
                // The delegate's own deadlines end this wait.
                deadline = Deadline::after(DELEGATE_CHECK);
            }
            state = self.changed.wait(state, &mut deadline);
            if state.round == round && !state.delegate_is_busy && deadline.has_passed() {
                let blame;
                (state, blame, _unused) = self.time_out(state, timeout);
                // Without the lock: a slow logger must not keep the others from their deadlines.
                drop(state);
                warn_or_stderr(|| tracing::error!(step = blame.step, culprits = ?blame.culprits, "{blame}"));
                state = lock(&self.state);
            }
        }
    }

    /// Records that a member's closure has returned or, if `failed` is `true`, has failed or panicked. Members that
    /// wait for this member, now or later, get an error.
    pub fn leave(&self, rank: usize, failed: bool) {
        let _unused;
        let mut state = lock(&self.state);
        state.statuses[rank].presence = if failed { Presence::Failed } else { Presence::Returned };
        let payload = state.payloads[rank].take();
        let (state, payloads) = self.try_complete(state, None);
        _unused = (payload, payloads);
        drop(state);
    }

    /// Returns the status of each member, for logs.
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        lock(&self.state).statuses.clone()
    }

    /// Records that the calling member makes a call to other processes outside a round. Until the returned guard is
    /// dropped, the other members wait for this member even after their deadlines.
    pub(super) fn in_group_call(&self) -> InGroupCall<'_> {
        lock(&self.state).delegate_is_busy = true;
        InGroupCall(self)
    }

    /// Ends the round if every member waits or has exited, and none makes a call to other processes. Returns values
    /// that the caller must drop after releasing the lock.
    fn try_complete<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        delegate: Option<&Delegate<'_>>,
    ) -> (MutexGuard<'a, State>, Vec<Option<Payload>>) {
        if state.delegate_is_busy || !state.statuses.iter().all(ReplicaStatus::is_blocked_or_done) {
            return (state, Vec::new());
        }
        if state.statuses.iter().all(ReplicaStatus::is_gone) {
            // Not kept while the team is idle: the others are notified that this process has left once nothing holds
            // the session.
            if let Some(session) = state.session.take() {
                let statuses = state.statuses.clone();
                drop(state);
                session.leave(statuses);
                drop(session);
                state = lock(&self.state);
            }
            return (state, Vec::new());
        }
        let timeout = state.group_timeouts.iter().flatten().max().copied();
        let outcome;
        (state, outcome) = match (state.session.clone(), timeout) {
            (Some(session), Some(timeout)) => self.call_group(state, &session, timeout, delegate),
            _ => match Blame::decide(state.step, &state.statuses) {
                Some(blame) => {
                    let (state, blame) = self.report_to_group(state, Arc::new(blame));
                    (state, Err(blame))
                }
                None => {
                    let payloads = state.take_payloads();
                    (state, Ok(Exchanged { payloads, delegate_result: None }))
                }
            },
        };
        let unused = self.complete(&mut state, outcome);
        (state, unused)
    }

    /// Makes the call to the other processes on behalf of all members of this process, without holding the lock.
    fn call_group<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        session: &Arc<Session>,
        timeout: Duration,
        delegate: Option<&Delegate<'_>>,
    ) -> (MutexGuard<'a, State>, Outcome) {
        state.delegate_is_busy = true;
        let statuses = state.statuses.clone();
        let payloads =
            if ReplicaStatus::all_agree(&statuses) { state.take_payloads() } else { Arc::default() };
        drop(state);
        let group_result = catch_unwind(AssertUnwindSafe(|| match delegate {
            Some(delegate) if ReplicaStatus::all_agree(&statuses) => {
                delegate(&payloads, session, statuses.clone(), timeout).map(Some)
            }
            _ => session.all_to_all(statuses.clone(), |_| Bytes::new(), timeout).map(|_| None),
        }));
        let mut state = lock(&self.state);
        state.delegate_is_busy = false;
        let outcome = match group_result {
            Ok(Ok(delegate_result)) => Ok(Exchanged { payloads, delegate_result }),
            Ok(Err(blame)) => {
                if session.is_over() {
                    state.over = Some(blame.clone());
                }
                Err(blame)
            }
            Err(panic) => {
                let call = statuses.iter().find_map(ReplicaStatus::call).cloned();
                let failed = statuses
                    .first()
                    .zip(call)
                    .map(|(first, call)| Arc::new(Blame::failed(state.step, first.replica, &call)));
                if let Some(blame) = failed {
                    let unused = self.complete(&mut state, Err(blame));
                    drop(state);
                    drop(unused);
                }
                resume_unwind(panic)
            }
        };
        (state, outcome)
    }

    /// Ends the run on all processes because a call has failed among the members of this process. The other processes
    /// receive the reason, because they may have made the call and wait. Returns the error with which the run ends,
    /// which is that of another process if that process failed first.
    fn report_to_group<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut blame: Arc<Blame>,
    ) -> (MutexGuard<'a, State>, Arc<Blame>) {
        if let Some(session) = state.session.clone() {
            state.delegate_is_busy = true;
            drop(state);
            blame = session.abort(blame);
            state = lock(&self.state);
            state.delegate_is_busy = false;
            state.over = Some(blame.clone());
        }
        (state, blame)
    }

    /// Ends the round and the run, because a deadline has passed while members are still running. Returns the blame,
    /// and values that the caller must drop after releasing the lock.
    fn time_out<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout: Duration,
    ) -> (MutexGuard<'a, State>, Arc<Blame>, Vec<Option<Payload>>) {
        let is_group_call = state.group_timeouts.iter().any(Option::is_some);
        let session = state.session.clone().filter(|_| is_group_call);
        let mut outcome = Ok(());
        if let Some(session) = session {
            let group_result;
            (state, group_result) = self.call_group(state, &session, timeout, None);
            outcome = group_result.map(drop);
        }
        let blame;
        (state, blame) = match outcome {
            Err(blame) => (state, blame),
            Ok(()) => {
                // A certain fault takes precedence over the guess that a replica hangs.
                let certain = Blame::decide(state.step, &state.statuses);
                let late = || Blame::timed_out(state.step, &state.statuses, timeout);
                let blame = Arc::new(certain.unwrap_or_else(late));
                self.report_to_group(state, blame)
            }
        };
        state.over = Some(blame.clone());
        let unused = self.complete(&mut state, Err(blame.clone()));
        (state, blame, unused)
    }

    fn complete(&self, state: &mut State, outcome: Outcome) -> Vec<Option<Payload>> {
        for (status, mine) in state.statuses.iter_mut().zip(&mut state.outcomes) {
            if !matches!(status.presence, Presence::Waiting(_)) {
                continue;
            }
            if let Presence::Waiting(call) = std::mem::replace(&mut status.presence, Presence::Running)
                && outcome.is_ok()
                && !call.continues
            {
                status.completed += 1;
                status.last = Some(call);
            }
            *mine = Some(outcome.clone());
        }
        state.group_timeouts.fill(None);
        let unused = state.payloads.iter_mut().map(Option::take).collect();
        state.round += 1;
        self.round.store(state.round, Ordering::Release);
        self.changed.notify(state);
        unused
    }
}
