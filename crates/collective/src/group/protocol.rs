//! The part of one worker in a session: its rounds, the calls that it aborts, and the end. Pure: no socket, no thread,
//! no clock.
//!
//! It is told what the others have said, who is lost and that the time is up, and says what to do next. A
//! [`Session`](super::Session) does it with a transport and a clock. The crate `distribute-simulation` does it with
//! neither, for all workers of a world at once.

use super::round::{Next, Round};
use super::{Frame, Said, SessionId};
use bytes::Bytes;
use distribute_cluster::{Blame, Fingerprint, Presence, Standing, World};
use std::sync::Arc;
use std::time::Duration;

/// The time that the deciding worker waits for the standings of the others after a deadline has passed. The others
/// wait twice as long for its verdict.
pub const GRACE: Duration = Duration::from_millis(500);

/// The time to wait for the verdict on a lost worker. The deciding worker may not have noticed, and be past the
/// round.
pub const VERDICT: Duration = Duration::from_millis(100);

/// The number of calls in a row that a worker aborts without waiting for the others.
const ABORTS: u64 = 2;

/// The largest number of rounds that a worker may be ahead of another: it may have aborted some, is in the next one,
/// and may abort that.
const LEAD: u64 = ABORTS + 2;

/// Whether the others wait for a worker whose replicas have all returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Some may still make a call: wait until something comes.
    Open,
    /// No worker participates: the replicas of all others have left, or cannot be reached any more.
    Closed,
    /// Some do, in a call that this worker has left out. The round of that call has begun here; it ends with the blame
    /// that all get.
    LeftOut,
}

/// One worker's part in a session. One round is under way at most.
///
/// Before each [`next_action`](Self::next_action) it has to [`hear`](Self::hear) everything that has come: workers that
/// have given up waiting sent their call first.
#[derive(Debug)]
pub struct Protocol {
    world: World,
    session: SessionId,
    /// The number of rounds that have begun.
    round: u64,
    /// The number of rounds that this worker has aborted, in all and since it last participated in one.
    aborted: u64,
    in_a_row: u64,
    /// Frames of rounds that this worker has not begun.
    early: Vec<(usize, Frame)>,
    /// The standings of the replicas of each worker whose replicas are gone, this one included.
    left: Vec<Option<Vec<Standing>>>,
    /// Whether each worker has become unreachable, and the reasons.
    lost: Vec<bool>,
    reasons: Vec<(usize, String)>,
    turn: Option<Turn>,
    /// The reason why the session is over, if it is.
    over: Option<Arc<Blame>>,
}

/// The round under way.
#[derive(Debug)]
struct Turn {
    round: Round,
    /// The new time to wait, if it has changed.
    patience: Option<Duration>,
    /// Whether the outcome is settled but for what others still have to tell.
    grace: bool,
    /// Whether that time has passed as well.
    last: bool,
}

/// The next action.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Send this to all other workers, then ask again.
    Say(Frame),
    /// Wait until something comes. With `Some`, so long from now on at most; with `None`, as long as was said before,
    /// and at first for the timeout of the round. Then [`expire`](Protocol::expire).
    Wait(Option<Duration>),
    /// The round is over. The data of all workers, by worker; this one's own is empty. Or who is to blame, in which
    /// case the session may be [over](Protocol::over) as well.
    End(Result<Vec<Bytes>, Arc<Blame>>),
}

impl Protocol {
    /// Worker `world.worker()` in a session that has just been opened.
    pub fn new(world: World, session: SessionId) -> Self {
        let workers = world.workers();
        Self {
            world,
            session,
            round: 0,
            aborted: 0,
            in_a_row: 0,
            early: Vec::new(),
            left: vec![None; workers],
            lost: vec![false; workers],
            reasons: Vec::new(),
            turn: None,
            over: None,
        }
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the number of rounds that have begun: the same on all workers that have made the same calls.
    pub fn rounds(&self) -> u64 {
        self.round
    }

    /// Returns how many rounds this worker has aborted.
    pub fn aborted_calls(&self) -> u64 {
        self.aborted
    }

    /// Returns the reason why the session is over, if a worker timed out or was lost.
    pub fn over(&self) -> Option<&Arc<Blame>> {
        self.over.as_ref()
    }

    /// Returns, for each worker, whether its loss is known.
    pub fn lost(&self) -> &[bool] {
        &self.lost
    }

    /// The workers of which nothing has been heard in the round under way.
    pub fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        self.turn.iter().flat_map(|turn| turn.round.silent())
    }

    /// Records that part of a message has arrived from a worker: `part` is the number of received bytes and of all
    /// bytes. Must be called before [`expire`](Self::expire).
    pub fn receives(&mut self, worker: usize, part: (u64, u64)) {
        if let Some(turn) = &mut self.turn {
            turn.round.receives(worker, part);
        }
    }

    /// This in a frame of the present round.
    pub fn frame(&self, said: Said) -> Frame {
        Frame { session: self.session, round: self.round, said }
    }

    /// Begins the next round, where the session is not over. `standings` are those of this worker's replicas, and
    /// `step` is for errors.
    pub fn begin(&mut self, step: u64, standings: Vec<Standing>, timeout: Duration) {
        if self.over.is_some() {
            return;
        }
        (self.round, self.in_a_row) = (self.round + 1, 0);
        let late = standings.iter().any(|standing| !standing.is_settled());
        let mut round = Round::new(self.world, step, standings, timeout);
        if late {
            round.expire();
        }
        self.turn = Some(Turn { round, patience: None, grace: false, last: false });
        // What came before somebody left or was lost.
        for (from, frame) in std::mem::take(&mut self.early) {
            // It has been looked at.
            let _ = self.hear(from, frame);
        }
        let Some(Turn { round, .. }) = &mut self.turn else { return };
        for (worker, left) in self.left.iter().enumerate() {
            if let Some(standings) = left.as_ref().filter(|_| worker != self.world.worker()) {
                round.hear(worker, Said::Left { standings: standings.clone() });
            }
        }
        for (worker, reason) in &self.reasons {
            // In the words of those who learn of it only now.
            round.lose(*worker, reason.clone());
        }
    }

    /// The digest of the call that this worker's replicas make in the round under way, if they make one. All others
    /// have to be told of it, and get the data for them, before anything else.
    pub fn call(&self) -> Option<u64> {
        self.turn.as_ref()?.round.call().map(Fingerprint::digest)
    }

    /// Skips the next round, because this worker has failed. Returns the frame for the others; `None` if the session
    /// is over, or if this worker has aborted so often that it must participate in the round, which has begun then.
    pub fn abort_call(
        &mut self,
        step: u64,
        mut standings: Vec<Standing>,
        timeout: Duration,
    ) -> Option<Frame> {
        for standing in &mut standings {
            standing.presence = Presence::Failed;
        }
        if self.over.is_some() {
            return None;
        }
        self.aborted += 1;
        if self.in_a_row == ABORTS {
            self.begin(step, standings, timeout);
            return None;
        }
        (self.round, self.in_a_row) = (self.round + 1, self.in_a_row + 1);
        Some(self.frame(Said::Standings { standings, step, expired: None, late: Vec::new(), lost: None }))
    }

    /// Ends the session for a reason of this worker's own, unless another one has ended it before. What to tell the
    /// others.
    pub fn abort(&mut self, blame: Arc<Blame>) -> Option<Frame> {
        if self.over.is_some() {
            return None;
        }
        // Nobody takes part in a round any more: of what has come, only a verdict counts.
        let theirs = std::mem::take(&mut self.early).into_iter().find_map(|(_, frame)| match frame.said {
            Said::Verdict(blame) => Some(Arc::new(blame)),
            _ => None,
        });
        self.round += 1;
        let blame = self.over.insert(theirs.unwrap_or(blame));
        let verdict = Said::Verdict(Blame::clone(blame));
        Some(self.frame(verdict))
    }

    /// Records that all replicas of this worker are gone, and returns the frame that tells the others.
    pub fn leave(&mut self, standings: Vec<Standing>) -> Frame {
        if let Some(left) = self.left.get_mut(self.world.worker()) {
            *left = Some(standings.clone());
        }
        Frame { session: self.session, round: self.round + 1, said: Said::Left { standings } }
    }

    /// Whether the others wait for this worker, whose replicas have returned and [left](Self::leave).
    ///
    /// Each asks itself, since those that wait know why they got an error, and this worker would not.
    pub fn ending(&mut self, step: u64, timeout: Duration) -> Ending {
        let mine = self.left.get(self.world.worker()).and_then(Option::as_ref);
        let Some(standings) = mine.filter(|_| self.over.is_none()) else { return Ending::Closed };
        let waits = |said: &Said| match said {
            Said::Call { .. } | Said::Verdict(_) => true,
            Said::Standings { standings, .. } => standings.iter().any(|standing| standing.call().is_some()),
            Said::Left { .. } | Said::Early { .. } => false,
        };
        if let Some(round) = self.early.iter().filter(|(_, f)| waits(&f.said)).map(|(_, f)| f.round).min() {
            let standings = standings.clone();
            self.round = self.round.max(round.saturating_sub(1));
            self.begin(step, standings, timeout);
            return Ending::LeftOut;
        }
        let gone = |(left, lost): (&Option<_>, &bool)| left.is_some() || *lost;
        if self.left.iter().zip(&self.lost).all(gone) { Ending::Closed } else { Ending::Open }
    }

    /// Takes a frame of the session from another worker.
    ///
    /// # Errors
    /// The reason for which the worker is lost.
    pub fn hear(&mut self, from: usize, frame: Frame) -> Result<(), &'static str> {
        if frame.round > self.round.saturating_add(LEAD) {
            // The others may make any number of calls, which fail, where this worker has left.
            if self.left.get(self.world.worker()).is_some_and(Option::is_some) {
                return Ok(());
            }
            return Err("it has sent a round that it cannot be in: all workers have to run the same program");
        }
        if let Said::Left { standings } = &frame.said
            && let Some(left) = self.left.get_mut(from)
        {
            *left = Some(standings.clone());
        }
        match (&mut self.turn, &frame.said) {
            (Some(turn), Said::Left { .. }) => turn.round.hear(from, frame.said),
            // Every round that begins is told who has left.
            (None, Said::Left { .. }) => {}
            // The session is over for those who sent it. Where it is one of a later round, they have this one behind
            // them: all have agreed in it then, unless it cannot be agreed in here any more.
            (Some(turn), Said::Verdict(_)) if frame.round <= self.round || turn.grace => {
                turn.round.hear(from, frame.said);
            }
            (_, Said::Verdict(_)) => self.early.push((from, frame)),
            _ if frame.round > self.round => self.early.push((from, frame)),
            (Some(turn), _) if frame.round == self.round => turn.round.hear(from, frame.said),
            // An answer that belongs to a past round.
            _ => {}
        }
        Ok(())
    }

    /// Another worker has become unreachable, after everything that came from it.
    pub fn lose(&mut self, worker: usize, reason: String) {
        let Some(lost @ false) = self.lost.get_mut(worker) else { return };
        *lost = true;
        if let Some(turn) = &mut self.turn {
            turn.round.lose(worker, reason.clone());
        }
        self.reasons.push((worker, reason));
    }

    /// The time that [`Action::Wait`] allowed is up.
    pub fn expire(&mut self) {
        match &mut self.turn {
            Some(turn) if turn.grace => turn.last = true,
            Some(turn) => turn.round.expire(),
            None => {}
        }
    }

    /// Returns the next action of the current round.
    pub fn next_action(&mut self) -> Action {
        let Some(Turn { round, patience, grace, last }) = &mut self.turn else {
            return Action::End(self.over.clone().map_or_else(|| Ok(Vec::new()), Err));
        };
        if !*grace && (round.has_expired() || round.has_lost()) {
            *grace = true;
            *patience = Some(match (round.has_expired(), round.judges()) {
                (false, _) => VERDICT,
                (true, true) => GRACE,
                (true, false) => 2 * GRACE,
            });
        }
        let ended = match round.next(*last) {
            Next::Wait => return Action::Wait(patience.take()),
            Next::Say(said) => return Action::Say(self.frame(said)),
            Next::Agreed(bodies) => Ok(bodies),
            Next::Blamed(blame) => Err(Arc::new(blame)),
            Next::Over(blame) => {
                self.turn = None;
                self.over = Some(Arc::new(blame.clone()));
                // Then the round ends.
                return Action::Say(self.frame(Said::Verdict(blame)));
            }
        };
        self.turn = None;
        Action::End(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Fault, Operation};
    use std::panic::Location;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn call() -> Fingerprint {
        Fingerprint::new(Operation::AllReduce, "", Location::caller())
    }

    /// Worker 2 of 3 in its first round.
    fn third() -> Protocol {
        let mut protocol = Protocol::new(World::new(3, 2, 1).unwrap(), SessionId { name: 1, number: 1 });
        protocol.begin(1, vec![Standing::waiting(2, call())], TIMEOUT);
        protocol
    }

    fn calls(protocol: &mut Protocol, worker: usize) {
        let said = Said::Call { digest: call().digest(), body: Bytes::from_static(b"data") };
        protocol.hear(worker, protocol.frame(said)).unwrap();
    }

    /// Worker 0 has ended the session in this round.
    fn verdict(protocol: &mut Protocol, round: u64) {
        let said = Said::Verdict(Blame::failed(1, 0, &call()));
        protocol.hear(0, Frame { round, ..protocol.frame(said) }).unwrap();
    }

    fn failed(action: Action) -> bool {
        matches!(action, Action::End(Err(blame)) if blame.fault == Fault::Failed)
    }

    // INV-2
    #[test]
    fn a_verdict_is_passed_on_to_those_who_may_not_have_heard_it() {
        let mut protocol = third();
        verdict(&mut protocol, 1);
        let said = protocol.next_action();
        assert!(matches!(&said, Action::Say(Frame { said: Said::Verdict(_), .. })), "{said:?}");
        assert!(failed(protocol.next_action()));
        assert!(protocol.over().is_some());
    }

    // INV-2
    #[test]
    fn the_verdict_of_a_later_round_counts_where_this_one_cannot_be_agreed_in_any_more() {
        let mut protocol = third();
        calls(&mut protocol, 0);
        assert_eq!(protocol.next_action(), Action::Wait(None));
        protocol.expire();
        let said = protocol.next_action();
        assert!(matches!(&said, Action::Say(Frame { said: Said::Standings { .. }, .. })), "{said:?}");
        assert_eq!(protocol.next_action(), Action::Wait(Some(2 * GRACE)), "worker 0 judges");
        verdict(&mut protocol, 2);
        assert!(matches!(protocol.next_action(), Action::Say(_)));
        assert!(failed(protocol.next_action()));
    }

    #[test]
    fn a_round_that_can_be_agreed_in_is_before_the_verdict_of_a_later_one() {
        let mut protocol = third();
        verdict(&mut protocol, 2);
        calls(&mut protocol, 0);
        calls(&mut protocol, 1);
        assert!(matches!(protocol.next_action(), Action::End(Ok(_))));
        protocol.begin(1, vec![Standing::waiting(2, call())], TIMEOUT);
        assert!(matches!(protocol.next_action(), Action::Say(_)));
        assert!(failed(protocol.next_action()));
    }

    /// Worker 1 of 3, whose replica has returned without a call.
    fn returned() -> (Protocol, Vec<Standing>) {
        let mut protocol = Protocol::new(World::new(3, 1, 1).unwrap(), SessionId { name: 1, number: 1 });
        let standings = vec![Standing { presence: Presence::Returned, ..Standing::running(1) }];
        protocol.leave(standings.clone());
        (protocol, standings)
    }

    /// Delivers what a worker of that world sends in round `round`.
    fn says(protocol: &mut Protocol, worker: usize, round: u64, said: Said) {
        protocol.hear(worker, Frame { round, ..protocol.frame(said) }).unwrap();
    }

    fn left(worker: usize) -> Said {
        Said::Left { standings: vec![Standing { presence: Presence::Returned, ..Standing::running(worker) }] }
    }

    // INV-25
    #[test]
    fn who_has_left_a_call_out_gets_the_blame_that_the_others_get() {
        let (mut protocol, mine) = returned();
        assert_eq!(protocol.ending(1, TIMEOUT), Ending::Open);
        says(&mut protocol, 2, 1, left(2));
        assert_eq!(protocol.ending(1, TIMEOUT), Ending::Open);
        let call = call();
        says(&mut protocol, 0, 1, Said::Call { digest: call.digest(), body: Bytes::new() });
        assert_eq!(protocol.ending(1, TIMEOUT), Ending::LeftOut);
        let said = protocol.next_action();
        assert!(
            matches!(&said, Action::Say(Frame { round: 1, said: Said::Standings { .. }, .. })),
            "{said:?}"
        );
        assert_eq!(protocol.next_action(), Action::Wait(None));
        let standings = vec![Standing::waiting(0, call)];
        let said = Said::Standings {
            standings: standings.clone(),
            step: 1,
            expired: None,
            late: vec![],
            lost: None,
        };
        says(&mut protocol, 0, 1, said);
        // Two have returned: the one that waits has made an additional call.
        let Said::Left { standings: second } = left(2) else { panic!("worker 2 has left") };
        let expected = Blame::judge(1, &[standings, mine, second].concat()).map(Arc::new).unwrap();
        assert_eq!(protocol.next_action(), Action::End(Err(expected)));
    }

    // INV-25
    #[test]
    fn who_has_left_in_order_waits_for_nobody_who_has_left_or_is_lost() {
        let (mut protocol, _) = returned();
        // It failed, and aborted what nobody called.
        let failed = vec![Standing { presence: Presence::Failed, ..Standing::running(2) }];
        let said =
            Said::Standings { standings: failed.clone(), step: 1, expired: None, late: vec![], lost: None };
        says(&mut protocol, 2, 1, said);
        says(&mut protocol, 2, 2, Said::Left { standings: failed });
        assert_eq!(protocol.ending(1, TIMEOUT), Ending::Open);
        protocol.lose(0, "reset".into());
        assert_eq!(protocol.ending(1, TIMEOUT), Ending::Closed);
    }

    #[test]
    fn others_may_be_any_number_of_failed_calls_ahead_of_a_worker_that_has_left() {
        let (mut protocol, _) = returned();
        for round in 1..100 {
            let said = Said::Call { digest: 0, body: Bytes::new() };
            says(&mut protocol, 0, round, said);
        }
        assert_eq!(protocol.ending(1, TIMEOUT), Ending::LeftOut);
        assert_eq!(protocol.rounds(), 1);
    }

    #[test]
    fn a_round_that_nobody_can_be_in_is_not_kept() {
        let mut protocol = third();
        let said = Said::Call { digest: 0, body: Bytes::new() };
        let frame = Frame { round: 1 + LEAD + 1, ..protocol.frame(said) };
        assert!(protocol.hear(0, frame).unwrap_err().contains("a round that it cannot be in"));
    }
}
