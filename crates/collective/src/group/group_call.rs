//! A call that the replicas of all workers make together, in one round or several.

use super::{Buffers, Session};
use crate::Failure;
use bytes::Bytes;
use distribute_cluster::{Blame, Fingerprint, Presence, Standing, World};
use distribute_net::Transport;
use std::sync::Arc;
use std::time::Duration;

/// A call that all replicas of a worker make together, over several rounds of a session.
#[derive(Debug)]
pub struct GroupCall<'a> {
    session: &'a Session,
    standings: Vec<Standing>,
    timeout: Duration,
    /// Whether all have agreed on it.
    begun: bool,
}

impl<'a> GroupCall<'a> {
    /// Creates a call of the replicas with these standings, which waits at most `timeout` in each round.
    pub fn new(session: &'a Session, standings: Vec<Standing>, timeout: Duration) -> Self {
        Self { session, standings, timeout, begun: false }
    }

    /// Gathers the bytes of all workers, by worker. Each may send another number of bytes.
    ///
    /// # Errors
    /// [`Failure`] on every worker.
    pub fn all_gather_bytes(&mut self, mine: Bytes) -> Result<Vec<Bytes>, Failure> {
        let mut all = self.round("its record", |_| mine.clone())?;
        let me = self.world().worker();
        if let Some(own) = all.get_mut(me) {
            *own = mine;
        }
        Ok(all)
    }

    /// Waits until all workers make this call; `what` says in errors what it waits for.
    ///
    /// # Errors
    /// [`Failure`] on every worker.
    pub fn barrier(&mut self, what: &str) -> Result<(), Failure> {
        self.round(what, |_| Bytes::new()).map(drop)
    }

    /// Ends the session on all workers because this one cannot make the call after all, and returns the reason.
    pub fn reject(self, blame: Arc<Blame>) -> Arc<Blame> {
        self.session.abort(blame)
    }

    /// Aborts the call, which this worker cannot make or continue: the other workers get an error that names its
    /// replicas.
    pub fn abort(self) {
        self.session.abort_call(self.standings, self.timeout);
    }

    /// Returns the outcome of a call. If this worker alone has failed, it aborts the call first: the others may wait
    /// for it in a further round, or will in their next call.
    pub(crate) fn abort_on_error<T>(self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.as_ref().is_err_and(|failure| !matches!(failure, Failure::Blame(_))) {
            self.abort();
        }
        outcome
    }

    pub(super) fn session(&self) -> &Session {
        self.session
    }

    /// Returns how many workers there are, and which one this is.
    pub fn world(&self) -> World {
        self.session.world()
    }

    /// Returns how long it waits in each round.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the transport of its bytes.
    pub(super) fn transport(&self) -> Arc<dyn Transport> {
        self.session.group().transport.clone()
    }

    /// Returns memory for messages to the others.
    pub fn buffers(&self) -> &Buffers {
        self.session.group().buffers()
    }

    /// Makes the first or the next round of the call; `what` says in errors what it waits for.
    pub(super) fn round(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        if self.begun { self.next_round(what, body) } else { Ok(self.agree(self.standings.clone(), body)?) }
    }

    /// Like [`round`](Self::round), but workers have to agree on `what` as well, even if this is the first one.
    pub(super) fn subround(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        if self.begun { self.next_round(what, body) } else { Ok(self.agree(self.standings_in(what), body)?) }
    }

    /// Makes the first round of the call, in which all agree on it. Further rounds are marked as parts of it.
    pub(super) fn first_round(&mut self, body: Bytes) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.agree(self.standings.clone(), |_| body.clone())
    }

    fn agree(
        &mut self,
        standings: Vec<Standing>,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let bodies = self.session.all_to_all(standings, body, self.timeout)?;
        self.begun = true;
        for standing in &mut self.standings {
            if let Presence::Waiting(call) = &mut standing.presence {
                call.continues = true;
            }
            standing.completed += 1;
        }
        Ok(bodies)
    }

    /// Makes a further round of the call; `what` says in errors what it waits for.
    pub(super) fn next_round(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        Ok(self.session.next_round(self.standings_in(what), body, self.timeout)?)
    }

    /// Returns the standings of this worker's replicas in a part of the call.
    fn standings_in(&self, what: &str) -> Vec<Standing> {
        let mut standings = self.standings.clone();
        for standing in &mut standings {
            if let Presence::Waiting(call) = &mut standing.presence {
                *call = Fingerprint { detail: format!("{}: {what}", call.detail).into(), ..call.clone() };
            }
        }
        standings
    }
}
