//! Calls between workers that are made once for all local replicas: in the session of a step, or between
//! steps.

use super::merging_member;
use crate::failure::failure;
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_cluster::{Fingerprint, ReplicaStatus};
use distribute_collective::Failure;
use distribute_collective::group::{Group, GroupCall, Session};
use std::sync::Arc;

impl Strategy {
    /// Makes a call together with the other workers, once for all local replicas. Returns `None`, without calling
    /// `make`, if there is only one worker, or if this process is catching up with the others or has left them. Inside
    /// a merge function, the call belongs to the session of the step; otherwise it belongs to the session for calls
    /// between steps.
    ///
    /// # Errors
    /// Returns an error if a worker makes a different call, disconnects or times out, or if `make` fails. All workers
    /// get the same error.
    #[doc(hidden)]
    pub fn worker_call<R>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        make: impl FnOnce(GroupCall<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>> {
        if self.group().is_none() {
            return Ok(None);
        }
        let call = call();
        self.replica_call(operation, |_| call.clone(), make)
    }

    /// Acts like [`worker_call`](Self::worker_call), for calls that may differ between local replicas. `call`
    /// returns the fingerprint of a local replica's call.
    ///
    /// # Errors
    /// Returns the errors of [`worker_call`](Self::worker_call).
    #[doc(hidden)]
    pub fn replica_call<R>(
        &self,
        operation: &'static str,
        call: impl Fn(usize) -> Fingerprint,
        make: impl FnOnce(GroupCall<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>> {
        let Some(group) = self.group() else { return Ok(None) };
        if let Some(member) = merging_member(self) {
            return member.with_group(call, make).transpose().map_err(failure(operation));
        }
        let mut between = self.session_between_steps();
        let session = self.open_between_steps(group, &mut between);
        let waiting = |local| {
            ReplicaStatus::waiting(
                self.world().global(local),
                Fingerprint { continues: false, ..call(local) },
            )
        };
        let statuses = (0..self.world().replicas()).map(waiting).collect();
        let made = make(GroupCall::new(&session, statuses, self.extended().timeout()));
        made.map(Some).map_err(failure(operation))
    }

    /// Reports `prepared` to the other workers if it is an error that only this worker has. Their next call returns an
    /// error that names this worker; then all workers continue. Returns `prepared`.
    pub(crate) fn abort_peers_on_err<T>(&self, prepared: Result<T>) -> Result<T> {
        // All workers already have the error of a call in which all participated.
        if prepared.as_ref().is_err_and(|error| error.blame().is_none())
            && let Some(group) = self.group()
        {
            match merging_member(self) {
                Some(member) => member.abort(),
                None => {
                    let mut between = self.session_between_steps();
                    let statuses = self.world().local_replicas().map(ReplicaStatus::running).collect();
                    self.open_between_steps(group, &mut between)
                        .abort_call(statuses, self.extended().timeout());
                }
            }
        }
        prepared
    }

    /// Returns the session for calls between steps, with the current step number. Opens a new session if there is none,
    /// or if a worker failed or timed out in the previous one.
    fn open_between_steps(&self, group: &Group, open: &mut Option<Arc<Session>>) -> Arc<Session> {
        match open {
            Some(session) if !session.is_over() => {
                session.set_step(self.steps());
                session.clone()
            }
            _ => open.insert(Arc::new(group.open("between steps", self.steps()))).clone(),
        }
    }
}
