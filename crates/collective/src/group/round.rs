//! The state of a round: what its workers have sent, and what follows from it. Pure: no socket, no thread, no clock.
//!
//! Every worker tells every other which call its replicas make. If all make the same call, the round is done. If a
//! worker differs, or is gone, lost or late, every worker notices, because all hear the same. Each then sends the
//! standings of its replicas, and all judge the same standings. Only after a deadline, or where a worker is lost, may
//! workers have heard different things; then the first worker that is still present judges, and sends the others its
//! verdict.

use super::Said;
use bytes::Bytes;
use distribute_cluster::{Blame, Fingerprint, Presence, Standing, World};
use distribute_net::{ENDED, LEFT};
use std::time::Duration;

/// One round of a session, as one worker sees it.
#[derive(Debug)]
pub struct Round {
    world: World,
    /// The number of the step, for errors: the highest of those that are known.
    step: u64,
    /// The standings of this worker's replicas.
    mine: Vec<Standing>,
    /// The time that this worker waits at most.
    timeout: Duration,
    peers: Vec<Peer>,
    /// Whether this worker has sent the others the standings of its replicas.
    explained: bool,
    expired: Option<Duration>,
    /// The workers of which nothing had been heard by the deadline of some worker.
    late: Vec<usize>,
    /// The workers that are late by their links, if they are: with the number of bytes of a message that have come
    /// here, and of the whole message, if a part has come.
    sending: Vec<(usize, Option<(u64, u64)>)>,
    /// A worker that another one has lost, and how.
    told: Option<(usize, String)>,
    /// The verdict of a worker that judged before this one.
    verdict: Option<Blame>,
}

/// The known state of another worker.
#[derive(Clone, Debug)]
enum Peer {
    /// It has said nothing.
    Silent,
    Calls {
        digest: u64,
        body: Bytes,
        /// The reason why it will send nothing more, if so.
        lost: Option<String>,
    },
    Stands(Vec<Standing>),
    Left(Vec<Standing>),
    Lost(String),
    /// This worker itself.
    Me,
}

/// The next step of a round.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Wait for the other workers.
    Wait,
    /// Send this to all other workers, then ask again.
    Say(Said),
    /// All workers make the same call. This is the data of each; this worker's own is empty.
    Agreed(Vec<Bytes>),
    /// The call does not complete. The reason is the same on all workers.
    Blamed(Blame),
    /// The call does not complete, and the session is over, because a late worker would take part in the others' next
    /// call instead of this one.
    ///
    /// The reason is for all others, whichever worker has decided: some may not have received it.
    Over(Blame),
}

impl Round {
    /// A round in which `mine` are the standings of this worker's replicas.
    pub fn new(world: World, step: u64, mine: Vec<Standing>, timeout: Duration) -> Self {
        let peer = |worker| if worker == world.worker() { Peer::Me } else { Peer::Silent };
        let peers = (0..world.workers()).map(peer).collect();
        let (late, sending) = Default::default();
        Self {
            world,
            step,
            mine,
            timeout,
            peers,
            explained: false,
            expired: None,
            late,
            sending,
            told: None,
            verdict: None,
        }
    }

    /// The call that all replicas of this worker make, if they do.
    pub fn call(&self) -> Option<&Fingerprint> {
        Standing::all_agree(&self.mine).then(|| self.mine.first()?.call()).flatten()
    }

    /// The workers of which nothing has been heard.
    pub fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        let silent = |(worker, peer): (usize, &Peer)| matches!(peer, Peer::Silent).then_some(worker);
        self.peers.iter().enumerate().filter_map(silent)
    }

    /// Records a message of another worker.
    pub fn hear(&mut self, worker: usize, said: Said) {
        if let Said::Standings { standings, .. } | Said::Left { standings } = &said
            && !standings.iter().map(|standing| standing.replica).eq(self.world.replicas_of(worker))
        {
            return self.lose(worker, "it sent standings of other replicas than its own".into());
        }
        let Some(peer) = self.peers.get_mut(worker) else { return };
        match (said, &*peer) {
            (Said::Verdict(blame), _) => {
                // The first worker's verdict counts.
                self.verdict.get_or_insert(blame);
            }
            (_, Peer::Me) => {}
            (Said::Call { digest, body }, Peer::Silent) => *peer = Peer::Calls { digest, body, lost: None },
            (Said::Call { .. }, _) => {}
            (Said::Standings { standings, step, expired, late, lost }, _) => {
                *peer = Peer::Stands(standings);
                self.step = self.step.max(step);
                self.expired = self.expired.or(expired);
                self.told = self.told.take().or(lost.filter(|(worker, _)| *worker < self.world.workers()));
                for worker in late.into_iter().filter(|worker| *worker < self.world.workers()) {
                    // Its call is here, and was not late for this worker.
                    if matches!(self.peers[worker], Peer::Calls { .. }) && !self.late.contains(&worker) {
                        self.sending.push((worker, None));
                    }
                    self.late.push(worker);
                }
            }
            (Said::Left { standings }, Peer::Silent) => *peer = Peer::Left(standings),
            // It has left after this round.
            (Said::Left { .. }, Peer::Calls { .. }) => self.lose(worker, "it has left".into()),
            (Said::Left { .. }, _) => {}
            (Said::Early { .. }, _) => self.lose(worker, "it sent a vector where a call was expected".into()),
        }
    }

    /// Records that another worker has become unreachable.
    pub fn lose(&mut self, worker: usize, reason: String) {
        match self.peers.get_mut(worker) {
            Some(peer @ Peer::Silent) => *peer = Peer::Lost(reason),
            // What it has said still counts: it may have ended after its last call.
            Some(Peer::Calls { lost, .. }) => {
                lost.get_or_insert(reason);
            }
            _ => {}
        }
    }

    /// Records that part of a message has arrived from a worker before the deadline: a worker that times out then is
    /// slow because of its link. `part` is the number of received bytes and of all bytes.
    pub fn receives(&mut self, worker: usize, part: (u64, u64)) {
        self.sending.push((worker, Some(part)));
    }

    /// Records that the deadline has passed. The outcome is decided by what has been heard so far, and by answers that
    /// arrive soon.
    pub fn expire(&mut self) {
        self.expired.get_or_insert(self.timeout);
        // The others are told, also where they know the standings already: else each would count its grace from another
        // time.
        self.explained = false;
        // A worker that is late itself has not waited for the others.
        if self.call().is_some() {
            let silent = |worker: &usize| matches!(self.peers[*worker], Peer::Silent);
            self.late.extend((0..self.peers.len()).filter(silent));
        }
    }

    /// Whether the deadline has passed, for this worker or another.
    pub fn has_expired(&self) -> bool {
        self.expired.is_some()
    }

    /// Whether a worker was lost before it made this call, to this worker or another, so that the round cannot
    /// complete.
    pub fn has_lost(&self) -> bool {
        self.told.is_some() || self.lost().is_some()
    }

    /// A worker that was lost before it made this call, and how.
    fn lost(&self) -> Option<(usize, &String)> {
        let mine = self.call().map(Fingerprint::digest);
        let lost = self.peers.iter().enumerate().filter_map(|(worker, peer)| match peer {
            Peer::Lost(reason) => Some((worker, reason)),
            Peer::Calls { digest, lost: Some(reason), .. } if Some(*digest) != mine => Some((worker, reason)),
            _ => None,
        });
        // Who has gone in order may have done so because of another. The first of equals.
        lost.min_by_key(|(_, reason)| matches!(reason.as_str(), ENDED | LEFT))
    }

    /// Whether this worker judges where workers may have heard different things: the first that is present, and was
    /// before the deadline. One that has aborted the call may be past it.
    pub fn judges(&self) -> bool {
        let takes_part = |standings: &[Standing]| !standings.iter().all(Standing::is_gone);
        let present = |peer: &Peer| match peer {
            Peer::Me => takes_part(&self.mine),
            Peer::Stands(standings) => takes_part(standings),
            Peer::Calls { lost, .. } => lost.is_none(),
            _ => false,
        };
        let mut all = self.peers.iter().enumerate();
        let first = all.find(|(worker, peer)| present(peer) && !self.late.contains(worker));
        first.is_some_and(|(worker, _)| worker == self.world.worker())
    }

    /// Returns what to do next. `last` says that there is no more waiting.
    pub fn next(&mut self, last: bool) -> Next {
        if let Some(blame) = self.verdict.take() {
            return Next::Over(blame);
        }
        let mine = self.call().map(Fingerprint::digest);
        let agrees = |peer: &Peer| match peer {
            Peer::Me => true,
            Peer::Calls { digest, .. } => Some(*digest) == mine,
            _ => false,
        };
        if mine.is_some() && !self.explained && self.peers.iter().all(agrees) {
            return Next::Agreed(self.peers.iter_mut().map(take_body).collect());
        }
        let silent = self.peers.iter().any(|peer| matches!(peer, Peer::Silent));
        let differs =
            mine.is_none() || self.peers.iter().any(|peer| !agrees(peer) && !matches!(peer, Peer::Silent));
        if !differs && self.expired.is_none() {
            return Next::Wait;
        }
        if !self.explained {
            self.explained = true;
            // Also what others have told: those that cannot reach each other hear it of a third.
            let lost = self.lost().map(|(worker, reason)| (worker, reason.clone())).or(self.told.clone());
            let (standings, step, late) = (self.mine.clone(), self.step, self.late.clone());
            return Next::Say(Said::Standings { standings, step, expired: self.expired, late, lost });
        }
        let unexplained =
            silent || self.peers.iter().any(|peer| matches!(peer, Peer::Calls { lost: None, .. }));
        let lost = self.has_lost();
        // Who is lost will not explain itself, and the others may have what this worker waits for in vain.
        if unexplained && !lost && !last {
            return Next::Wait;
        }
        if (self.expired.is_some() || lost) && !self.judges() && !last {
            return Next::Wait;
        }
        let blame = self.judge();
        if self.expired.is_some() || lost { Next::Over(blame) } else { Next::Blamed(blame) }
    }

    /// Returns the reason why the call does not complete, as far as this worker knows.
    fn judge(&self) -> Blame {
        let call = self.mine.iter().find_map(Standing::call).cloned();
        if let (Some((worker, reason)), Some(call)) = (self.lost(), &call) {
            return Blame::lost(self.step, worker, self.world.replicas_of(worker).collect(), reason, call);
        }
        let mut all = Vec::with_capacity(self.world.num_replicas_in_sync());
        for (worker, peer) in self.peers.iter().enumerate() {
            let replicas = self.world.replicas_of(worker);
            match (peer, &call) {
                (Peer::Me, _) => all.extend_from_slice(&self.mine),
                (Peer::Stands(standings) | Peer::Left(standings), _) => all.extend_from_slice(standings),
                // It has made a call and sent no standings: the digest tells whether it is this call.
                (Peer::Calls { digest, .. }, Some(call)) if *digest == call.digest() => {
                    all.extend(replicas.map(|replica| Standing::waiting(replica, call.clone())));
                }
                _ => all.extend(replicas.map(|replica| self.absent(worker, replica))),
            }
        }
        // A certain fault takes precedence over the guess that somebody is stuck.
        let certain = Blame::judge(self.step, &all).or_else(|| {
            let ((worker, reason), call) = (self.told.as_ref()?, call.as_ref()?);
            Some(Blame::lost(self.step, *worker, self.world.replicas_of(*worker).collect(), reason, call))
        });
        certain.unwrap_or_else(|| {
            // Who came after the deadline is late all the same.
            for worker in &self.late {
                for replica in self.world.replicas_of(*worker) {
                    all[replica] = self.absent(*worker, replica);
                }
            }
            Blame::late(self.step, &all, self.expired.unwrap_or(self.timeout))
        })
    }

    /// The standing of a replica of a worker that has not come.
    fn absent(&self, worker: usize, replica: usize) -> Standing {
        let part = self.sending.iter().find_map(|(sending, part)| (*sending == worker).then_some(*part));
        let presence = part.map_or(Presence::Running, |part| Presence::Sending { part });
        Standing { presence, ..Standing::running(replica) }
    }
}

fn take_body(peer: &mut Peer) -> Bytes {
    match peer {
        Peer::Calls { body, .. } => std::mem::take(body),
        _ => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Cause, Fault, Operation};
    use std::panic::Location;

    #[test]
    fn a_worker_that_comes_after_the_deadline_and_before_the_verdict_is_the_one_that_was_late() {
        let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
        let standings = |worker: usize| vec![Standing::waiting(worker, call.clone())];
        let timeout = Duration::from_secs(3);
        let mut round = Round::new(World::new(3, 0, 1).unwrap(), 1, standings(0), timeout);
        round.hear(1, Said::Call { digest: call.digest(), body: Bytes::new() });
        assert!(matches!(round.next(false), Next::Wait));
        round.expire();
        assert!(matches!(round.next(false), Next::Say(Said::Standings { expired: Some(_), .. })));
        for worker in [1, 2] {
            let (standings, expired) = (standings(worker), Some(timeout));
            round.hear(worker, Said::Standings { standings, step: 1, expired, late: vec![], lost: None });
        }
        let Next::Over(blame) = round.next(false) else { panic!("worker 0 judges") };
        assert_eq!((blame.fault, blame.culprits), (Fault::Late, vec![2]));
    }

    #[test]
    fn who_is_late_by_its_link_is_named_with_what_has_come() {
        let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
        let standings = |worker: usize| vec![Standing::waiting(worker, call.clone())];
        let (world, timeout) = (World::new(3, 0, 1).unwrap(), Duration::from_secs(3));
        let missing = |round: &mut Round| {
            assert!(matches!(round.next(true), Next::Say(_)));
            let Next::Over(Blame { cause: Cause::Late { missing, .. }, .. }) = round.next(true) else {
                panic!("worker 0 judges")
            };
            missing
        };
        let absent = |part| Standing { presence: Presence::Sending { part }, ..Standing::running(2) };
        // A part has come here.
        let mut round = Round::new(world, 1, standings(0), timeout);
        round.hear(1, Said::Call { digest: call.digest(), body: Bytes::new() });
        round.receives(2, (3, 10));
        round.expire();
        assert_eq!(missing(&mut round), [absent(Some((3, 10)))]);
        // All has come here, and not to another worker.
        let late = |late: Vec<usize>| {
            let (standings, expired) = (standings(1), Some(timeout));
            Said::Standings { standings, step: 1, expired, late, lost: None }
        };
        let mut round = Round::new(world, 1, standings(0), timeout);
        round.hear(2, Said::Call { digest: call.digest(), body: Bytes::new() });
        round.hear(1, late(vec![2]));
        assert_eq!(missing(&mut round), [absent(None)]);
        // It has come to nobody in time.
        let mut round = Round::new(world, 1, standings(0), timeout);
        round.hear(1, late(vec![2]));
        round.hear(2, Said::Call { digest: call.digest(), body: Bytes::new() });
        assert_eq!(missing(&mut round), [Standing::running(2)]);
    }

    // INV-31
    #[test]
    fn who_has_aborted_judges_nothing_and_who_waits_does() {
        let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
        let failed = vec![Standing { presence: Presence::Failed, ..Standing::running(0) }];
        let timeout = Duration::from_secs(3);
        let aborted = Round::new(World::new(3, 0, 1).unwrap(), 1, failed.clone(), timeout);
        assert!(!aborted.judges());
        let mine = vec![Standing::waiting(1, call)];
        let mut round = Round::new(World::new(3, 1, 1).unwrap(), 1, mine, timeout);
        round
            .hear(0, Said::Standings { standings: failed, step: 1, expired: None, late: vec![], lost: None });
        assert!(matches!(round.next(false), Next::Say(Said::Standings { expired: None, .. })));
        assert_eq!(round.next(false), Next::Wait, "worker 2 may still come");
        round.expire();
        assert!(round.judges());
        assert!(matches!(round.next(true), Next::Say(Said::Standings { expired: Some(_), .. })));
        let Next::Over(blame) = round.next(true) else { panic!("it is over") };
        assert_eq!((blame.fault, blame.culprits), (Fault::Failed, vec![0]));
    }

    #[test]
    fn nobody_waits_for_the_deadline_where_a_worker_is_lost_that_another_one_has_heard() {
        let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
        let of = |me: usize| {
            let standings = vec![Standing::waiting(me, call.clone())];
            let mut round = Round::new(World::new(3, me, 1).unwrap(), 1, standings, Duration::from_secs(60));
            for other in (0..2).filter(|other| *other != me) {
                round.hear(other, Said::Call { digest: call.digest(), body: Bytes::new() });
            }
            round.lose(2, "reset".into());
            assert!(matches!(round.next(false), Next::Say(Said::Standings { expired: None, .. })));
            round
        };
        let lost = |next| matches!(next, Next::Over(blame) if blame.fault == Fault::Lost);
        assert!(lost(of(0).next(false)), "worker 0 judges");
        let mut other = of(1);
        assert_eq!(other.next(false), Next::Wait);
        assert!(lost(other.next(true)), "worker 0 may be past the round, and say nothing");
    }

    #[test]
    fn a_worker_that_others_have_lost_is_named_also_by_one_that_it_still_talks_to() {
        let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
        let standings = |worker: usize| vec![Standing::waiting(worker, call.clone())];
        let timeout = Duration::from_secs(60);
        let mut round = Round::new(World::new(3, 2, 1).unwrap(), 1, standings(2), timeout);
        for (worker, other) in [(0, 1), (1, 0)] {
            let lost = Some((other, "reset".to_owned()));
            let (standings, expired, late) = (standings(worker), None, vec![]);
            round.hear(worker, Said::Standings { standings, step: 1, expired, late, lost });
        }
        assert!(matches!(round.next(false), Next::Say(Said::Standings { lost: Some((1, _)), .. })));
        assert_eq!(round.next(false), Next::Wait, "worker 0 judges");
        let Next::Over(blame) = round.next(true) else { panic!("it is over") };
        assert_eq!((blame.fault, blame.culprits), (Fault::Lost, vec![1]));
    }

    #[test]
    fn a_worker_that_comes_after_the_deadline_of_the_others_leaves_the_verdict_to_them() {
        let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
        let standings = |worker: usize| vec![Standing::waiting(worker, call.clone())];
        let timeout = Duration::from_secs(3);
        let mut late = Round::new(World::new(3, 0, 1).unwrap(), 1, standings(0), timeout);
        for worker in [1, 2] {
            let (standings, expired) = (standings(worker), Some(timeout));
            late.hear(worker, Said::Standings { standings, step: 1, expired, late: vec![0, 7], lost: None });
        }
        let said = late.next(false);
        assert!(matches!(&said, Next::Say(Said::Standings { expired: Some(_), .. })), "{said:?}");
        assert_eq!(late.next(false), Next::Wait, "worker 1 judges");
        // Should it not, the one that was late is named all the same.
        let Next::Over(blame) = late.next(true) else { panic!("it is over") };
        assert_eq!((blame.fault, blame.culprits), (Fault::Late, vec![0]));
    }

    #[test]
    fn a_deadline_is_told_also_to_those_who_know_the_standings() {
        let [mine, other] =
            ["this", "that"].map(|what| Fingerprint::new(Operation::AllReduce, what, Location::caller()));
        let standings = vec![Standing::waiting(0, mine)];
        let mut round = Round::new(World::new(3, 0, 1).unwrap(), 1, standings, Duration::from_secs(60));
        round.hear(1, Said::Call { digest: other.digest(), body: Bytes::new() });
        assert!(matches!(round.next(false), Next::Say(Said::Standings { expired: None, .. })));
        assert_eq!(round.next(false), Next::Wait, "the others may explain themselves");
        round.expire();
        let said = round.next(false);
        assert!(matches!(&said, Next::Say(Said::Standings { expired: Some(_), .. })), "{said:?}");
        assert_eq!(round.next(false), Next::Wait);
    }

    #[test]
    fn who_has_gone_in_order_is_named_only_if_nobody_else_is_lost() {
        for (others, named) in [([LEFT, "reset"], 2), ([ENDED, LEFT], 1), (["reset", LEFT], 1)] {
            let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
            let mine = vec![Standing::waiting(0, call)];
            let mut round = Round::new(World::new(3, 0, 1).unwrap(), 1, mine, Duration::from_secs(60));
            (1..).zip(others).for_each(|(worker, reason)| round.lose(worker, reason.to_owned()));
            assert!(
                matches!(round.next(true), Next::Say(Said::Standings { lost: Some((worker, _)), .. }) if worker == named)
            );
            let Next::Over(blame) = round.next(true) else { panic!("it is over") };
            assert_eq!(blame.culprits, [named], "{blame}");
        }
    }

    #[test]
    fn a_worker_that_is_lost_after_another_call_is_lost_and_not_late() {
        let [mine, other] =
            ["this", "that"].map(|what| Fingerprint::new(Operation::AllReduce, what, Location::caller()));
        let standings = vec![Standing::waiting(0, mine)];
        let mut round = Round::new(World::new(2, 0, 1).unwrap(), 1, standings, Duration::from_secs(60));
        round.hear(1, Said::Call { digest: other.digest(), body: Bytes::new() });
        round.lose(1, "reset".into());
        assert!(round.has_lost());
        assert!(matches!(round.next(false), Next::Say(_)));
        let Next::Over(blame) = round.next(false) else { panic!("it is over") };
        assert_eq!((blame.fault, blame.culprits), (Fault::Lost, vec![1]));
    }
}
