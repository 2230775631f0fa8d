//! A call that the replicas of all workers make together, in one or more rounds.

use super::round::culprits;
use super::{Buffers, Session};
use crate::Failure;
use bytes::Bytes;
use distribute_cluster::{Blame, Corruption, Fingerprint, Operation, Presence, ReplicaStatus, World};
use distribute_net::Transport;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A call that all replicas of a worker make together, in one or more rounds of a session.
#[derive(Debug)]
pub struct GroupCall<'a> {
    session: &'a Session,
    statuses: Vec<ReplicaStatus>,
    timeout: Duration,
    /// Whether the first round, in which all workers agree on the call, has completed.
    begun: bool,
}

impl<'a> GroupCall<'a> {
    /// Creates a call of the replicas with the given statuses. It waits at most `timeout` in each round.
    pub fn new(session: &'a Session, statuses: Vec<ReplicaStatus>, timeout: Duration) -> Self {
        Self { session, statuses, timeout, begun: false }
    }

    /// Exchanges bytes between all workers. Returns `mine` of each worker, by rank. The lengths may differ.
    ///
    /// # Errors
    /// Returns a [`Failure::Blame`] on every worker if workers make different calls, or if a worker has exited, is lost
    /// or times out.
    pub fn all_gather_bytes(&mut self, mine: Bytes) -> Result<Vec<Bytes>, Failure> {
        let mut all = self.round("its record", |_| mine.clone())?;
        let me = self.world().worker();
        if let Some(own) = all.get_mut(me) {
            *own = mine;
        }
        Ok(all)
    }

    /// Sends the bytes `piece(worker)` to every other worker. Returns the bytes that each worker has sent to this one,
    /// by rank; the entry of this worker is empty. The lengths may differ. `what` names the awaited data in errors.
    ///
    /// # Errors
    /// Returns a [`Failure::Blame`] on every worker if workers make different calls, or if a worker has exited, is lost
    /// or times out.
    pub fn all_to_all_bytes(
        &mut self,
        what: &str,
        piece: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        self.round(what, piece)
    }

    /// Waits until all workers make this call. `what` names the barrier in errors.
    ///
    /// # Errors
    /// Returns a [`Failure::Blame`] on every worker if workers make different calls, or if a worker has exited, is lost
    /// or times out.
    pub fn barrier(&mut self, what: &str) -> Result<(), Failure> {
        self.round(what, |_| Bytes::new()).map(drop)
    }

    /// Ends the session on all workers because this worker cannot make the call. Returns `blame` or, if another worker
    /// has already ended the session, that worker's blame.
    pub fn reject(self, blame: Arc<Blame>) -> Arc<Blame> {
        self.session.abort(blame)
    }

    /// Ends the session on all workers because data of another worker has arrived changed. This worker no longer
    /// communicates with that worker. Returns the blame that all workers get.
    pub(super) fn fail_corrupted(&self, corruption: Corruption) -> Arc<Blame> {
        let (session, world) = (self.session, self.world());
        session.group().inbox.mark_lost(corruption.sender, corruption.clone());
        let call = self.statuses.iter().find_map(ReplicaStatus::call).cloned();
        let call = call.unwrap_or_else(|| Fingerprint::new(Operation::Run, "", Location::caller()));
        let culprits = culprits(world, &corruption);
        session.abort(Arc::new(Blame::corrupted(session.step(), culprits, corruption, &call)))
    }

    /// Aborts the call because this worker cannot make or continue it. The other workers get an error that blames this
    /// worker's replicas.
    pub fn abort(self) {
        self.session.abort_call(self.statuses, self.timeout);
    }

    /// Returns the outcome of the call. If it is an error of this worker alone, first aborts the call, because the
    /// other workers wait for this worker in another round or in their next call.
    pub(crate) fn abort_on_error<T>(self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.as_ref().is_err_and(|failure| !matches!(failure, Failure::Blame(_))) {
            self.abort();
        }
        outcome
    }

    pub(super) fn session(&self) -> &Session {
        self.session
    }

    /// Returns the number of workers, and the index of this one.
    pub fn world(&self) -> World {
        self.session.world()
    }

    /// Returns the maximum time that the call waits in each round.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the transport that sends the bytes of the call.
    pub(super) fn transport(&self) -> Arc<dyn Transport> {
        self.session.group().transport.clone()
    }

    /// Returns the pool of memory for messages to other workers.
    pub fn buffers(&self) -> &Buffers {
        self.session.group().buffers()
    }

    /// Makes the next round of the call: sends `body(worker)` to every other worker, and returns the bytes that each
    /// worker has sent to this one. `what` names the awaited data in errors.
    pub(super) fn round(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        if self.begun { self.next_round(what, body) } else { Ok(self.agree(None, body)?) }
    }

    /// Makes a round like [`round`](Self::round), except that workers must also agree on `what` if it is the first
    /// round.
    pub(super) fn subround(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        if self.begun { self.next_round(what, body) } else { Ok(self.agree(Some(what), body)?) }
    }

    /// Makes the first round of the call, in which all workers agree on the call. Later rounds are marked as parts of
    /// the call.
    ///
    /// # Errors
    /// Returns the same [`Blame`] on every worker if workers make different calls, or if a worker exited, was lost or
    /// timed out.
    pub(super) fn first_round(&mut self, body: Bytes) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.agree(None, |_| body.clone())
    }

    fn agree(
        &mut self,
        part: Option<&str>,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let bodies = self.session.first_round(part, &self.statuses, body, self.timeout)?;
        self.begun = true;
        for status in &mut self.statuses {
            if let Presence::Waiting(call) = &mut status.presence {
                call.continues = true;
            }
            status.completed += 1;
        }
        Ok(bodies)
    }

    /// Makes a round after the first one. `what` names the awaited data in errors.
    pub(super) fn next_round(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        Ok(self.session.next_round(what, &self.statuses, body, self.timeout)?)
    }
}
