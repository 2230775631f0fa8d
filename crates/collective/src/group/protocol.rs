//! The state of one worker in a session: its rounds, the calls that it aborts, and the end. This module contains only
//! pure functions and values.
//!
//! The inputs are messages of other workers, lost workers and timeouts, and the outputs are the next actions. A
//! [`Session`](super::Session) executes them with a transport and a clock, and the simulation executes them without
//! either.

use super::repeated_calls::RepeatedCalls;
use super::round::{Next, Round, common_call};
use super::{Content, Frame, Loss, SessionId};
use bytes::Bytes;
use distribute_cluster::{Blame, Fingerprint, Presence, ReplicaStatus, World};
use std::sync::Arc;
use std::time::Duration;

/// The time after a deadline for which the deciding worker waits for the statuses of the others. The others wait twice
/// as long for its verdict.
pub const GRACE: Duration = Duration::from_millis(500);

/// The time for which a worker waits for the verdict after another worker was lost. Then it decides itself, because the
/// deciding worker may not have noticed the loss, and may already have finished the round.
pub const VERDICT: Duration = Duration::from_millis(100);

/// The maximum number of consecutive calls that a worker aborts without waiting for the others.
const MAX_ABORTS: u64 = 2;

/// The maximum number of rounds by which one worker may be ahead of another: the rounds that it has aborted, the one in
/// which it participates, and the one that it may abort next.
const MAX_ROUNDS_AHEAD: u64 = MAX_ABORTS + 2;

/// The maximum number of frames of one worker that are kept for rounds that this worker has not begun. In a round, a
/// worker sends its call, its statuses before and after the deadline, and a verdict.
// INV-28
const MAX_EARLY: usize = 4 * (MAX_ROUNDS_AHEAD as usize + 1);

/// The status of a worker whose replicas have all returned: whether other workers still wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Another worker may still make a call: wait for the next event.
    Open,
    /// No other worker can wait for this one: the session is over, or each other worker has left or is unreachable.
    Closed,
    /// Other workers wait in a call that this worker has skipped. This worker has begun that round, which ends with the
    /// same blame on all workers.
    LeftOut,
}

/// The reason for treating a worker as lost: it has sent a frame that a worker with the same program never sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} has sent {fault}: all workers have to run the same program, of the same version")]
pub struct InvalidFrame {
    /// The worker that has sent the frame.
    pub worker: usize,
    /// The property of the frame that is invalid.
    pub fault: FrameFault,
}

/// The property of a frame that makes it invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// The frame belongs to a round that the sender cannot have reached.
    #[error("a frame of round {round}, which it cannot have reached while this worker is in round {current}")]
    UnreachableRound {
        /// The round of the frame.
        round: u64,
        /// The round of the receiver.
        current: u64,
    },
    /// The sender has sent more frames for later rounds than a correct worker can.
    #[error(
        "more than {limit} frames of rounds that this worker has not begun, the last one of round {round}"
    )]
    TooManyEarly {
        /// The round of the frame.
        round: u64,
        /// The maximum number of frames of one worker for later rounds.
        limit: usize,
    },
}

/// The state of one worker in a session. At most one round is in progress.
///
/// Before each [`next_action`](Self::next_action), call [`receive`](Self::receive) for every received message, because
/// a worker that stops waiting sends its call first.
#[derive(Debug)]
pub struct Protocol {
    world: World,
    session: SessionId,
    /// The number of the latest round that has begun, or that this worker has skipped.
    round: u64,
    /// The total number of rounds that this worker has aborted.
    aborted: u64,
    /// The number of consecutive rounds up to now that this worker has aborted.
    aborts_in_row: u64,
    /// Received frames of rounds that this worker has not begun.
    early: Vec<(usize, Frame)>,
    /// The statuses of the replicas of each worker whose replicas have returned, including this worker.
    left: Vec<Option<Vec<ReplicaStatus>>>,
    /// Whether each worker is unreachable.
    lost: Vec<bool>,
    reasons: Vec<(usize, Loss)>,
    current: Option<Current>,
    /// The calls that this worker made before.
    calls: RepeatedCalls,
    /// The reason why the session is over, if it is.
    over: Option<Arc<Blame>>,
}

/// The round in progress.
#[derive(Debug)]
struct Current {
    round: Round,
    /// The maximum time to wait from now on, if it has changed.
    patience: Option<Duration>,
    /// Whether the deadline has passed or a worker is lost, so that this worker only waits a short time for the others'
    /// statuses or verdict.
    grace: bool,
    /// Whether that short time has passed.
    last: bool,
}

/// The next action of the caller.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Send this frame to all other workers, then call [`next_action`](Protocol::next_action) again.
    Send(Frame),
    /// Wait for the next event, then call the method for it. `Some` contains the maximum time from now. `None` means
    /// that the previous limit still applies, which is initially the timeout of the round. When the time has passed,
    /// call [`expire`](Protocol::expire).
    Wait(Option<Duration>),
    /// The round has ended. If it has completed, this contains the data of all workers, by rank; this worker's own
    /// entry is empty. If it has failed, the session may be [over](Protocol::over).
    End(Result<Vec<Bytes>, Arc<Blame>>),
}

impl Protocol {
    /// Creates the protocol of worker `world.worker()` in a session that has just been opened.
    pub fn new(world: World, session: SessionId) -> Self {
        let workers = world.workers();
        Self {
            world,
            session,
            round: 0,
            aborted: 0,
            aborts_in_row: 0,
            early: Vec::new(),
            left: vec![None; workers],
            lost: vec![false; workers],
            reasons: Vec::new(),
            current: None,
            calls: RepeatedCalls::default(),
            over: None,
        }
    }

    /// Returns the session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the number of rounds that have begun, including those that this worker has skipped. All workers that
    /// have made the same calls have the same number.
    pub fn rounds(&self) -> u64 {
        self.round
    }

    /// Returns the number of rounds that this worker has aborted.
    pub fn aborted_calls(&self) -> u64 {
        self.aborted
    }

    /// Returns the reason why the session is over: a worker timed out, was lost, or has ended the session. Returns
    /// `None` if the session is not over.
    pub fn over(&self) -> Option<&Arc<Blame>> {
        self.over.as_ref()
    }

    /// Returns, for each worker, whether it is lost, as far as this worker knows.
    pub fn lost(&self) -> &[bool] {
        &self.lost
    }

    /// Returns the workers from which nothing has been received in the current round.
    pub fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        self.current.iter().flat_map(|current| current.round.silent())
    }

    /// Records that part of a message has arrived from a worker. `part` is the number of received bytes and the length
    /// of the message. Call this before [`expire`](Self::expire).
    pub fn note_partial(&mut self, worker: usize, part: (u64, u64)) {
        if let Some(current) = &mut self.current {
            current.round.note_partial(worker, part);
        }
    }

    /// Returns a frame of the current round with the given content.
    pub fn frame(&self, content: Content) -> Frame {
        Frame { session: self.session, round: self.round, content, sum: None }
    }

    /// Sets the calls that were made before, such as those of the last session.
    pub(super) fn set_repeated_calls(&mut self, calls: RepeatedCalls) {
        self.calls = calls;
    }

    /// Returns the calls that were made before, for the next session.
    pub(super) fn take_repeated_calls(&mut self) -> RepeatedCalls {
        std::mem::take(&mut self.calls)
    }

    /// Changes the calls of replicas to the part `part` of these calls.
    pub(super) fn enter_part(&mut self, statuses: &mut [ReplicaStatus], part: &str) {
        self.calls.enter_part(statuses, part);
    }

    /// Returns the call that all of these replicas make, with its detail and digest or, if `part` is given, with those
    /// of this part. Returns `None` if their calls differ, if a replica makes none, if a round is in progress, or if
    /// this worker has received anything that the next round must consider.
    ///
    /// If all workers turn out to make this call in the next round, call [`pass_round`](Self::pass_round). Otherwise
    /// call [`begin`](Self::begin), and [`receive`](Self::receive) for what has arrived.
    pub(super) fn repeatable_call<'a>(
        &'a mut self,
        statuses: &'a [ReplicaStatus],
        part: Option<&str>,
    ) -> Option<(&'a Fingerprint, &'a Arc<str>, u64)> {
        let is_quiet = self.over.is_none()
            && self.current.is_none()
            && self.early.is_empty()
            && self.reasons.is_empty()
            && self.left.iter().all(Option::is_none);
        let call = common_call(statuses).filter(|_| is_quiet)?;
        let (detail, digest) = self.calls.find(call, part);
        Some((call, detail, digest))
    }

    /// Completes the next round, in which all workers have made the [call](Self::repeatable_call) of this one.
    pub(super) fn pass_round(&mut self) {
        (self.round, self.aborts_in_row) = (self.round + 1, 0);
    }

    /// Begins the next round, unless the session is over. `statuses` are those of this worker's replicas; if one of
    /// them is still running, this worker has timed out. `step` is the step to report in errors.
    pub fn begin(&mut self, step: u64, statuses: Vec<ReplicaStatus>, timeout: Duration) {
        if self.over.is_some() {
            return;
        }
        (self.round, self.aborts_in_row) = (self.round + 1, 0);
        let late = statuses.iter().any(|status| !status.is_blocked_or_done());
        let mut round = Round::new(self.world, step, statuses, timeout, &mut self.calls);
        if late {
            round.expire();
        }
        self.current = Some(Current { round, patience: None, grace: false, last: false });
        // Frames that arrived before this round began.
        for (from, frame) in std::mem::take(&mut self.early) {
            // The frame was checked when it arrived.
            let _ = self.receive(from, frame);
        }
        let Some(Current { round, .. }) = &mut self.current else { return };
        for (worker, left) in self.left.iter().enumerate() {
            if let Some(statuses) = left.as_ref().filter(|_| worker != self.world.worker()) {
                round.receive(worker, Content::Left { statuses: statuses.clone() });
            }
        }
        for (worker, reason) in &self.reasons {
            // Workers that were lost before this round.
            round.mark_lost(*worker, reason.clone());
        }
    }

    /// Returns the digest of the call that this worker's replicas make in the current round, if they agree on one. The
    /// caller must send it to all other workers, with the data for each of them, before the first
    /// [`next_action`](Self::next_action) of the round.
    pub fn call(&self) -> Option<u64> {
        self.current.as_ref()?.round.digest()
    }

    /// Skips the next round, because this worker has failed. Returns the frame that reports this to the other workers.
    ///
    /// Returns `None` if the session is over. Also returns `None`, and begins the round instead, if this worker has
    /// reached the maximum number of consecutive aborts, so that it must participate in this round.
    pub fn abort_call(
        &mut self,
        step: u64,
        mut statuses: Vec<ReplicaStatus>,
        timeout: Duration,
    ) -> Option<Frame> {
        for status in &mut statuses {
            status.presence = Presence::Failed;
        }
        if self.over.is_some() {
            return None;
        }
        self.aborted += 1;
        if self.aborts_in_row == MAX_ABORTS {
            self.begin(step, statuses, timeout);
            return None;
        }
        (self.round, self.aborts_in_row) = (self.round + 1, self.aborts_in_row + 1);
        Some(self.frame(Content::Statuses { statuses, step, expired: None, late: Vec::new(), lost: None }))
    }

    /// Ends the session because of `blame` or, if another worker's verdict was received, because of that verdict.
    /// Returns the frame that reports this to the others; `None` if the session is already over.
    pub fn abort(&mut self, blame: Arc<Blame>) -> Option<Frame> {
        if self.over.is_some() {
            return None;
        }
        // No further round is made, so of the frames that have arrived, only a verdict counts.
        let theirs = std::mem::take(&mut self.early).into_iter().find_map(|(_, frame)| match frame.content {
            Content::Verdict(blame) => Some(Arc::new(blame)),
            _ => None,
        });
        self.round += 1;
        let blame = self.over.insert(theirs.unwrap_or(blame));
        let verdict = Content::Verdict(Blame::clone(blame));
        Some(self.frame(verdict))
    }

    /// Records that all replicas of this worker have returned. Returns the frame that reports this to the others.
    pub fn leave(&mut self, statuses: Vec<ReplicaStatus>) -> Frame {
        if let Some(left) = self.left.get_mut(self.world.worker()) {
            *left = Some(statuses.clone());
        }
        let content = Content::Left { statuses };
        Frame { session: self.session, round: self.round + 1, content, sum: None }
    }

    /// Returns whether other workers wait for this worker, whose replicas have returned and [left](Self::leave). If
    /// they do, begins the round of the call in which they wait.
    ///
    /// Each worker checks this for itself, so that a worker whose replicas have left gets the same error as those that
    /// wait.
    pub fn ending(&mut self, step: u64, timeout: Duration) -> Ending {
        let mine = self.left.get(self.world.worker()).and_then(Option::as_ref);
        let Some(statuses) = mine.filter(|_| self.over.is_none()) else { return Ending::Closed };
        let waits = |content: &Content| match content {
            Content::Call { .. } | Content::Verdict(_) => true,
            Content::Statuses { statuses, .. } => statuses.iter().any(|status| status.call().is_some()),
            Content::Left { .. } | Content::Early { .. } => false,
        };
        if let Some(round) = self.early.iter().filter(|(_, f)| waits(&f.content)).map(|(_, f)| f.round).min()
        {
            let statuses = statuses.clone();
            self.round = self.round.max(round.saturating_sub(1));
            self.begin(step, statuses, timeout);
            return Ending::LeftOut;
        }
        let gone = |(left, lost): (&Option<_>, &bool)| left.is_some() || *lost;
        if self.left.iter().zip(&self.lost).all(gone) { Ending::Closed } else { Ending::Open }
    }

    /// Processes a frame of this session from another worker.
    ///
    /// # Errors
    /// Returns the reason for treating the sender as lost. The frame is dropped.
    pub fn receive(&mut self, from: usize, frame: Frame) -> Result<(), InvalidFrame> {
        if frame.round > self.round.saturating_add(MAX_ROUNDS_AHEAD) {
            // If this worker has left, the others may make any number of calls, which fail.
            if self.left.get(self.world.worker()).is_some_and(Option::is_some) {
                return Ok(());
            }
            let fault = FrameFault::UnreachableRound { round: frame.round, current: self.round };
            return Err(InvalidFrame { worker: from, fault });
        }
        if let Content::Left { statuses } = &frame.content
            && let Some(left) = self.left.get_mut(from)
        {
            *left = Some(statuses.clone());
        }
        match (&mut self.current, &frame.content) {
            (Some(current), Content::Left { .. }) => current.round.receive(from, frame.content),
            // Every round that begins receives the workers that have left.
            (None, Content::Left { .. }) => {}
            // A verdict ends the session for its sender. A verdict of a later round is kept: its sender has completed
            // this round, so all workers have agreed. If this worker can no longer agree, the verdict counts now.
            (Some(current), Content::Verdict(_)) if frame.round <= self.round || current.grace => {
                current.round.receive(from, frame.content);
            }
            (_, Content::Verdict(_)) => return self.keep(from, frame),
            _ if frame.round > self.round => return self.keep(from, frame),
            (Some(current), _) if frame.round == self.round => current.round.receive(from, frame.content),
            // An answer that belongs to a past round.
            _ => {}
        }
        Ok(())
    }

    /// Stores a frame for a later round.
    fn keep(&mut self, worker: usize, frame: Frame) -> Result<(), InvalidFrame> {
        if self.early.iter().filter(|(from, _)| *from == worker).count() >= MAX_EARLY {
            let fault = FrameFault::TooManyEarly { round: frame.round, limit: MAX_EARLY };
            return Err(InvalidFrame { worker, fault });
        }
        self.early.push((worker, frame));
        Ok(())
    }

    /// Records that another worker is unreachable. All of its messages must have been received before.
    pub fn mark_lost(&mut self, worker: usize, reason: impl Into<Loss>) {
        let reason = reason.into();
        let Some(lost @ false) = self.lost.get_mut(worker) else { return };
        *lost = true;
        if let Some(current) = &mut self.current {
            current.round.mark_lost(worker, reason.clone());
        }
        self.reasons.push((worker, reason));
    }

    /// Records that the time of an [`Action::Wait`] has passed.
    pub fn expire(&mut self) {
        match &mut self.current {
            Some(current) if current.grace => current.last = true,
            Some(current) => current.round.expire(),
            None => {}
        }
    }

    /// Returns the next action in the current round. Without a current round, returns [`Action::End`] with the blame if
    /// the session is over, and otherwise with an empty list.
    pub fn next_action(&mut self) -> Action {
        let Some(Current { round, patience, grace, last }) = &mut self.current else {
            return Action::End(self.over.clone().map_or_else(|| Ok(Vec::new()), Err));
        };
        if !*grace && (round.has_expired() || round.has_lost()) {
            *grace = true;
            *patience = Some(match (round.has_expired(), round.decides()) {
                (false, _) => VERDICT,
                (true, true) => GRACE,
                (true, false) => 2 * GRACE,
            });
        }
        let ended = match round.next(*last) {
            Next::Wait => return Action::Wait(patience.take()),
            Next::Send(content) => return Action::Send(self.frame(content)),
            Next::Agreed(bodies) => Ok(bodies),
            Next::Blamed(blame) => Err(Arc::new(blame)),
            Next::Over(blame) => {
                self.current = None;
                self.over = Some(Arc::new(blame.clone()));
                // The round ends with the next action.
                return Action::Send(self.frame(Content::Verdict(blame)));
            }
        };
        self.current = None;
        Action::End(ended)
    }
}

#[cfg(test)]
mod tests;
