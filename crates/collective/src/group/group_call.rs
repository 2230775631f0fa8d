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
pub struct Calling<'a> {
    session: &'a Session,
    standings: Vec<Standing>,
    timeout: Duration,
    /// Whether all have agreed on it.
    begun: bool,
}

impl<'a> Calling<'a> {
    /// A call of the replicas with these standings, which waits at most `timeout` in each round.
    pub fn new(session: &'a Session, standings: Vec<Standing>, timeout: Duration) -> Self {
        Self { session, standings, timeout, begun: false }
    }

    /// Exchanges a small record, and returns those of all workers, by worker.
    ///
    /// # Errors
    /// [`Failure`] on every worker.
    pub fn records(&mut self, mine: Bytes) -> Result<Vec<Bytes>, Failure> {
        self.everybodys("its record", mine)
    }

    /// Tells the other workers that this one cannot make the call after all, and returns the reason.
    pub fn refuse(self, blame: Arc<Blame>) -> Arc<Blame> {
        self.session.abandon(blame)
    }

    /// Tells the other workers that this one cannot make the call, or go on with it: they get an error that names its
    /// replicas.
    pub fn decline(self) {
        self.session.decline(self.standings, self.timeout);
    }

    /// The outcome of a call. Where this worker has failed by itself, the others may wait for it in a further round, or will
    /// in their next call: it declines that.
    pub(crate) fn end<T>(self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.as_ref().is_err_and(|failure| !matches!(failure, Failure::Blame(_))) {
            self.decline();
        }
        outcome
    }

    pub(super) fn session(&self) -> &Session {
        self.session
    }

    /// How many workers there are, and which one this is.
    pub fn world(&self) -> World {
        self.session.world()
    }

    /// How long it waits in each round.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What moves its bytes.
    pub(super) fn transport(&self) -> Arc<dyn Transport> {
        self.session.group().transport.clone()
    }

    /// Memory for what is sent to the others.
    pub fn buffers(&self) -> &Buffers {
        self.session.group().buffers()
    }

    /// The next round of the call, be it the first or a further one; `what` says in errors what it waits for.
    pub(super) fn round(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        if self.begun { self.go_on(what, body) } else { Ok(self.agree(self.standings.clone(), body)?) }
    }

    /// Sends the same to all workers, and gives what all have sent, this one included.
    pub(super) fn everybodys(&mut self, what: &str, mine: Bytes) -> Result<Vec<Bytes>, Failure> {
        let mut all = self.round(what, |_| mine.clone())?;
        let me = self.world().worker();
        if let Some(own) = all.get_mut(me) {
            *own = mine;
        }
        Ok(all)
    }

    /// Like [`round`](Self::round), where workers have to agree on `what`, too, even if this is the first one.
    pub(super) fn part(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        if self.begun { self.go_on(what, body) } else { Ok(self.agree(self.standings_in(what), body)?) }
    }

    /// The first round of the call, in which all agree on it. Further rounds are marked as parts of it.
    pub(super) fn begin(&mut self, body: Bytes) -> Result<Vec<Bytes>, Arc<Blame>> {
        self.agree(self.standings.clone(), |_| body.clone())
    }

    fn agree(
        &mut self,
        standings: Vec<Standing>,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Arc<Blame>> {
        let bodies = self.session.swap(standings, body, self.timeout)?;
        self.begun = true;
        for standing in &mut self.standings {
            if let Presence::Waiting(call) = &mut standing.presence {
                call.continues = true;
            }
            standing.completed += 1;
        }
        Ok(bodies)
    }

    /// A further round of the call; `what` says in errors what it waits for.
    pub(super) fn go_on(
        &mut self,
        what: &str,
        body: impl FnMut(usize) -> Bytes,
    ) -> Result<Vec<Bytes>, Failure> {
        Ok(self.session.go_on(self.standings_in(what), body, self.timeout)?)
    }

    /// The standings of this worker's replicas in a part of the call.
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
