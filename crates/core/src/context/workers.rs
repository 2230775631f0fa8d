//! Calls among workers, which are made once for all local replicas: in the session of a step, or between steps.

use super::{failure, merging};
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_cluster::{Fingerprint, Standing};
use distribute_collective::Failure;
use distribute_collective::group::{Group, GroupCall, Session};
use std::sync::Arc;

impl Strategy {
    /// Makes a call together with the other workers, once for all local replicas; `None` if there is only one
    /// worker. In a merge function, the call belongs to the session of its step.
    ///
    /// # Errors
    /// An error if workers make other calls, disconnect or time out. It is the same on all workers.
    #[doc(hidden)]
    pub fn among_workers<R>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        make: impl FnOnce(GroupCall<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>> {
        if self.group().is_none() {
            return Ok(None);
        }
        let call = call();
        self.among_replicas(operation, |_| call.clone(), make)
    }

    /// Acts like [`among_workers`](Self::among_workers), for calls in which local replicas may differ: `call`
    /// returns the fingerprint of each.
    ///
    /// # Errors
    /// The errors of [`among_workers`](Self::among_workers).
    #[doc(hidden)]
    pub fn among_replicas<R>(
        &self,
        operation: &'static str,
        call: impl Fn(usize) -> Fingerprint,
        make: impl FnOnce(GroupCall<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>> {
        let Some(group) = self.group() else { return Ok(None) };
        if let Some(member) = merging(self) {
            return member.with_group(call, make).transpose().map_err(failure(operation));
        }
        let mut between = self.session_between_steps();
        let session = self.between(group, &mut between);
        let waiting = |local| {
            Standing::waiting(self.world().global(local), Fingerprint { continues: false, ..call(local) })
        };
        let standings = (0..self.world().replicas()).map(waiting).collect();
        let made = make(GroupCall::new(&session, standings, self.extended().timeout()));
        made.map(Some).map_err(failure(operation))
    }

    /// Reports an error of this worker alone to the other workers, which get an error that names it in their
    /// next call, once. Then all continue. Returns `prepared`.
    pub(crate) fn or_tell_workers<T>(&self, prepared: Result<T>) -> Result<T> {
        // All workers already have the error of a call in which all participated.
        if prepared.as_ref().is_err_and(|error| error.blame().is_none())
            && let Some(group) = self.group()
        {
            match merging(self) {
                Some(member) => member.abort(),
                None => {
                    let mut between = self.session_between_steps();
                    let standings = self.world().local_replicas().map(Standing::running).collect();
                    self.between(group, &mut between).abort_call(standings, self.extended().timeout());
                }
            }
        }
        prepared
    }

    /// Returns the session for calls between steps; a new one if a worker failed or timed out in the previous
    /// one.
    fn between(&self, group: &Group, open: &mut Option<Arc<Session>>) -> Arc<Session> {
        match open {
            Some(session) if !session.is_over() => {
                session.set_step(self.steps());
                session.clone()
            }
            _ => open.insert(Arc::new(group.open("between steps", self.steps()))).clone(),
        }
    }
}
