//! The state of a round: the messages of the workers, and the decision. This module contains only pure functions and
//! values, without sockets, threads and clocks.
//!
//! Every worker sends every other the call that its replicas make. If all make the same call, the round is complete. If
//! a call differs, or if a worker has exited, is lost or times out, every worker notices this, because all receive the
//! same messages. Each then sends the statuses of its replicas, and all decide from the same statuses.
//!
//! Workers may have received different messages only after a deadline, or if a worker is lost. The first worker that
//! still participates then decides, and sends its verdict to the others.

// - **INV-25** Workers decide before they use each other's data, which may have arrived earlier. It is released
//   only if the replicas of all workers make the same call. Otherwise all get one blame, including those whose
//   replicas have returned without it (`Protocol::ending`). Tests: `collective/src/group/protocol/tests.rs`,
//   `collective/tests/it/group.rs`, `collective/tests/it/worlds.rs`, `clusters/multi_worker/faults.rs`,
//   `simulation/tests/it/scenarios.rs`.

use super::repeated_calls::RepeatedCalls;
use super::{Content, Loss};
use bytes::Bytes;
use distribute_cluster::{Blame, Corruption, Fingerprint, Presence, ReplicaStatus, World};
use std::time::Duration;

/// One round of a session, from the point of view of one worker.
#[derive(Debug)]
pub struct Round {
    world: World,
    /// The step to report in errors: the highest one that any worker has reported.
    step: u64,
    /// The statuses of this worker's replicas.
    own: Vec<ReplicaStatus>,
    /// The digest of the call that all replicas of this worker make, if they make one.
    digest: Option<u64>,
    /// The maximum time for which this worker waits.
    timeout: Duration,
    peers: Vec<Peer>,
    /// Whether this worker has sent the statuses of its replicas to the other workers.
    explained: bool,
    expired: Option<Duration>,
    /// The workers from which nothing had arrived by the deadline of some worker.
    late: Vec<usize>,
    /// The workers that timed out because of a slow link. If part of a message has arrived, the entry contains the
    /// number of received bytes and the length of the message.
    sending: Vec<(usize, Option<(u64, u64)>)>,
    /// A worker whose loss another worker has reported, and the reason for the loss.
    their_loss: Option<(usize, Loss)>,
    /// The verdict of another worker, if that worker decided before this one.
    verdict: Option<Blame>,
}

/// The state of a worker, as far as this worker knows.
#[derive(Clone, Debug)]
enum Peer {
    /// No message has been received from the worker.
    Silent,
    Calls {
        digest: u64,
        body: Bytes,
        /// The reason why nothing more will be received from the worker, if there is one.
        lost: Option<Loss>,
    },
    Statuses(Vec<ReplicaStatus>),
    Left(Vec<ReplicaStatus>),
    Lost(Loss),
    /// This worker itself.
    ThisWorker,
}

/// The next action in a round.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Wait for messages of the other workers.
    Wait,
    /// Send this content to all other workers, then call [`next`](Round::next) again.
    Send(Content),
    /// All workers make the same call. The field is the data of each worker, by rank; this worker's own entry is empty.
    Agreed(Vec<Bytes>),
    /// The call does not complete. The reason is the same on all workers.
    Blamed(Blame),
    /// The call does not complete, and the session is over. Otherwise a worker that timed out would take part in the
    /// others' next call instead of this one.
    ///
    /// Send the reason to all other workers, even if another worker has decided it, because some may not have received
    /// that decision.
    Over(Blame),
}

impl Round {
    /// Creates a round in which `own` are the statuses of this worker's replicas.
    ///
    /// `calls` contains the digests of calls that were made before.
    pub(super) fn new(
        world: World,
        step: u64,
        own: Vec<ReplicaStatus>,
        timeout: Duration,
        calls: &mut RepeatedCalls,
    ) -> Self {
        let digest = common_call(&own).map(|call| calls.digest(call));
        let peer = |worker| if worker == world.worker() { Peer::ThisWorker } else { Peer::Silent };
        let peers = (0..world.workers()).map(peer).collect();
        let (late, sending) = Default::default();
        Self {
            world,
            step,
            own,
            digest,
            timeout,
            peers,
            explained: false,
            expired: None,
            late,
            sending,
            their_loss: None,
            verdict: None,
        }
    }

    /// Returns the call that all replicas of this worker make; `None` if their calls differ, or if a replica makes
    /// none.
    pub fn call(&self) -> Option<&Fingerprint> {
        common_call(&self.own)
    }

    /// Returns the digest of [`call`](Self::call).
    pub fn digest(&self) -> Option<u64> {
        self.digest
    }

    /// Returns the workers from which nothing has been received.
    pub fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        let silent = |(worker, peer): (usize, &Peer)| matches!(peer, Peer::Silent).then_some(worker);
        self.peers.iter().enumerate().filter_map(silent)
    }

    /// Records a message of another worker. A worker whose message is not valid in a round is treated as lost.
    pub fn receive(&mut self, worker: usize, content: Content) {
        if let Content::Statuses { statuses, .. } | Content::Left { statuses } = &content
            && !statuses.iter().map(|status| status.replica).eq(self.world.replicas_of(worker))
        {
            return self.mark_lost(worker, "it sent the status of replicas that are not its own");
        }
        let Some(peer) = self.peers.get_mut(worker) else { return };
        match (content, &*peer) {
            (Content::Verdict(blame), _) => {
                // The first worker's verdict counts.
                self.verdict.get_or_insert(blame);
            }
            (_, Peer::ThisWorker) => {}
            (Content::Call { digest, body }, Peer::Silent) => {
                *peer = Peer::Calls { digest, body, lost: None }
            }
            (Content::Call { .. }, _) => {}
            (Content::Statuses { statuses, step, expired, late, lost }, _) => {
                *peer = Peer::Statuses(statuses);
                self.step = self.step.max(step);
                self.expired = self.expired.or(expired);
                self.their_loss =
                    self.their_loss.take().or(lost.filter(|(worker, _)| *worker < self.world.workers()));
                for worker in late.into_iter().filter(|worker| *worker < self.world.workers()) {
                    // This worker has received the call in time.
                    if matches!(self.peers[worker], Peer::Calls { .. }) && !self.late.contains(&worker) {
                        self.sending.push((worker, None));
                    }
                    self.late.push(worker);
                }
            }
            (Content::Left { statuses }, Peer::Silent) => *peer = Peer::Left(statuses),
            // The worker has left after its call in this round.
            (Content::Left { .. }, Peer::Calls { .. }) => self.mark_lost(worker, "it has left"),
            (Content::Left { .. }, _) => {}
            (Content::Early { .. }, _) => {
                self.mark_lost(worker, "it sent a vector where a call was expected")
            }
        }
    }

    /// Records that another worker has become unreachable. A call that the worker has made before still counts.
    pub fn mark_lost(&mut self, worker: usize, reason: impl Into<Loss>) {
        let reason = reason.into();
        match self.peers.get_mut(worker) {
            Some(peer @ Peer::Silent) => *peer = Peer::Lost(reason),
            // The worker may have exited after its last call.
            Some(Peer::Calls { lost, .. }) => {
                lost.get_or_insert(reason);
            }
            _ => {}
        }
    }

    /// Records that part of a message has arrived from a worker. If the worker then misses the deadline, the error
    /// reports a slow link. `part` is the number of received bytes and the length of the message.
    pub fn note_partial(&mut self, worker: usize, part: (u64, u64)) {
        self.sending.push((worker, Some(part)));
    }

    /// Records that the deadline has passed. The round is decided from the messages that have arrived, and from
    /// responses that arrive soon.
    pub fn expire(&mut self) {
        self.expired.get_or_insert(self.timeout);
        // Sent even if the others have these statuses, so that all count their grace period from one time.
        self.explained = false;
        // A worker that has not made the call itself has not waited for the others.
        if self.call().is_some() {
            let silent = |worker: &usize| matches!(self.peers[*worker], Peer::Silent);
            self.late.extend((0..self.peers.len()).filter(silent));
        }
    }

    /// Returns whether the deadline has passed, for this worker or another one.
    pub fn has_expired(&self) -> bool {
        self.expired.is_some()
    }

    /// Returns whether the round cannot complete because a worker became unreachable, to this worker or to another one,
    /// before it made the call.
    pub fn has_lost(&self) -> bool {
        self.their_loss.is_some() || self.lost().is_some()
    }

    /// Returns the first worker that became unreachable before making this call, and the reason; `None` if there is
    /// none. A worker that left gracefully comes after all others, because it may have left because of another loss.
    fn lost(&self) -> Option<(usize, &Loss)> {
        let own = self.digest;
        let lost = self.peers.iter().enumerate().filter_map(|(worker, peer)| match peer {
            Peer::Lost(reason) => Some((worker, reason)),
            Peer::Calls { digest, lost: Some(reason), .. } if Some(*digest) != own => Some((worker, reason)),
            _ => None,
        });
        // A worker that has left gracefully may have left because of another loss, so other losses take precedence.
        // Among equal ones, the first counts.
        lost.min_by_key(|(_, reason)| reason.is_graceful())
    }

    /// Returns whether this worker decides if workers may have received different messages. The first worker decides
    /// that still participates and has made the call before the deadline. A worker that has aborted the call does not
    /// count, because it may have finished the round already.
    pub fn decides(&self) -> bool {
        let takes_part = |statuses: &[ReplicaStatus]| !statuses.iter().all(ReplicaStatus::is_gone);
        let present = |peer: &Peer| match peer {
            Peer::ThisWorker => takes_part(&self.own),
            Peer::Statuses(statuses) => takes_part(statuses),
            Peer::Calls { lost, .. } => lost.is_none(),
            _ => false,
        };
        let mut all = self.peers.iter().enumerate();
        let first = all.find(|(worker, peer)| present(peer) && !self.late.contains(worker));
        first.is_some_and(|(worker, _)| worker == self.world.worker())
    }

    /// Returns the next action, which depends on the messages that have been received. If `last` is `true`, this worker
    /// no longer waits for statuses or a verdict of others, and decides alone.
    pub fn next(&mut self, last: bool) -> Next {
        if let Some(blame) = self.verdict.take() {
            return Next::Over(blame);
        }
        let own = self.digest;
        let agrees = |peer: &Peer| match peer {
            Peer::ThisWorker => true,
            Peer::Calls { digest, .. } => Some(*digest) == own,
            _ => false,
        };
        if own.is_some() && !self.explained && self.peers.iter().all(agrees) {
            return Next::Agreed(self.peers.iter_mut().map(take_body).collect());
        }
        let silent = self.peers.iter().any(|peer| matches!(peer, Peer::Silent));
        let differs =
            own.is_none() || self.peers.iter().any(|peer| !agrees(peer) && !matches!(peer, Peer::Silent));
        if !differs && self.expired.is_none() {
            return Next::Wait;
        }
        if !self.explained {
            self.explained = true;
            // Losses that others have reported are included, so that two workers that cannot reach each other receive
            // them from a third.
            let lost =
                self.lost().map(|(worker, reason)| (worker, reason.clone())).or(self.their_loss.clone());
            let (statuses, step, late) = (self.own.clone(), self.step, self.late.clone());
            return Next::Send(Content::Statuses { statuses, step, expired: self.expired, late, lost });
        }
        let unexplained =
            silent || self.peers.iter().any(|peer| matches!(peer, Peer::Calls { lost: None, .. }));
        let lost = self.has_lost();
        // A lost worker sends no statuses, and the others may have received what this worker would wait for in vain.
        if unexplained && !lost && !last {
            return Next::Wait;
        }
        if (self.expired.is_some() || lost) && !self.decides() && !last {
            return Next::Wait;
        }
        let blame = self.decide_blame();
        if self.expired.is_some() || lost { Next::Over(blame) } else { Next::Blamed(blame) }
    }

    /// Determines why the call does not complete, from the messages that this worker has received.
    fn decide_blame(&self) -> Blame {
        let call = self.own.iter().find_map(ReplicaStatus::call).cloned();
        if let (Some((worker, reason)), Some(call)) = (self.lost(), &call) {
            return self.blame_loss(worker, reason, call);
        }
        let mut all = Vec::with_capacity(self.world.num_replicas_in_sync());
        for (worker, peer) in self.peers.iter().enumerate() {
            let replicas = self.world.replicas_of(worker);
            match (peer, &call) {
                (Peer::ThisWorker, _) => all.extend_from_slice(&self.own),
                (Peer::Statuses(statuses) | Peer::Left(statuses), _) => all.extend_from_slice(statuses),
                // The worker has made a call but sent no statuses. The digest shows whether it is the same call.
                (Peer::Calls { digest, .. }, Some(call)) if *digest == call.digest() => {
                    all.extend(replicas.map(|replica| ReplicaStatus::waiting(replica, call.clone())));
                }
                _ => all.extend(replicas.map(|replica| self.absent(worker, replica))),
            }
        }
        // A certain fault takes precedence over the guess that a worker hangs.
        let certain = Blame::decide(self.step, &all).or_else(|| {
            let ((worker, reason), call) = (self.their_loss.as_ref()?, call.as_ref()?);
            Some(self.blame_loss(*worker, reason, call))
        });
        certain.unwrap_or_else(|| {
            // Workers whose call arrived after the deadline have timed out nevertheless.
            for worker in &self.late {
                for replica in self.world.replicas_of(*worker) {
                    all[replica] = self.absent(*worker, replica);
                }
            }
            Blame::timed_out(self.step, &all, self.expired.unwrap_or(self.timeout))
        })
    }

    /// Returns the blame for a lost worker or corrupted data.
    fn blame_loss(&self, worker: usize, loss: &Loss, call: &Fingerprint) -> Blame {
        match loss {
            Loss::Link(reason) => {
                Blame::lost(self.step, worker, self.world.replicas_of(worker).collect(), reason, call)
            }
            Loss::Corrupted(corruption) => {
                let culprits = culprits(self.world, corruption);
                Blame::corrupted(self.step, culprits, corruption.clone(), call)
            }
        }
    }

    /// Returns the assumed status of a replica whose worker has not made the call.
    fn absent(&self, worker: usize, replica: usize) -> ReplicaStatus {
        let part = self.sending.iter().find_map(|(sending, part)| (*sending == worker).then_some(*part));
        let presence = part.map_or(Presence::Running, |part| Presence::Sending { part });
        ReplicaStatus { presence, ..ReplicaStatus::running(replica) }
    }
}

/// Returns the replicas of the sender and of the receiver of corrupted data.
pub(super) fn culprits(world: World, corruption: &Corruption) -> Vec<usize> {
    let workers = [corruption.sender, corruption.receiver];
    let workers = workers.into_iter().filter(|worker| *worker < world.workers());
    workers.flat_map(|worker| world.replicas_of(worker)).collect()
}

/// Returns the call that all of these replicas make; `None` if their calls differ, or if a replica makes none.
pub(super) fn common_call(statuses: &[ReplicaStatus]) -> Option<&Fingerprint> {
    ReplicaStatus::all_agree(statuses).then(|| statuses.first()?.call()).flatten()
}

fn take_body(peer: &mut Peer) -> Bytes {
    if let Peer::Calls { body, .. } = peer { std::mem::take(body) } else { Bytes::new() }
}

#[cfg(test)]
mod tests;
