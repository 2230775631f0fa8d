//! The threads of one step: the leader, its helpers, and how they wait for each other.

use distribute_base::{Error, Result};
use distribute_cluster::Fingerprint;
use distribute_collective::group::GroupCall;
use distribute_collective::threads::Member;
use std::sync::Arc;

/// The replicas of one step, after they have exchanged headers. All replicas call each of the methods below except
/// [`group_call`](StepSync::group_call), and get the same result or the same error.
pub(crate) struct StepSync<'a> {
    pub(crate) member: &'a Member,
    /// The fingerprint of the call in which the headers were exchanged.
    pub(crate) fingerprint: &'a Fingerprint,
}

impl StepSync<'_> {
    /// Returns the next part of the call with the other workers; `None` if there are no other workers. Only the leader
    /// on replica 0 may call this.
    pub(crate) fn group_call(&self, part: &str) -> Option<GroupCall<'_>> {
        self.member.group_call(|| self.fingerprint.part(part))
    }

    /// Runs `lead` on replica 0, with the threads of the other replicas as helpers. The helpers wait without a
    /// deadline, so `lead` must not call the program's code.
    pub(crate) fn run_on_leader<R: Clone + Send + Sync + 'static>(
        &self,
        lead: impl FnOnce(&Threads<'_>) -> Result<R>,
    ) -> Result<R> {
        let made = self.member.run_on_leader_with_helpers(self.fingerprint, |helpers| {
            let broadcast = |work: &Work<'_>| helpers.broadcast(work);
            lead(&Threads { count: helpers.size(), broadcast: &broadcast }).map_err(Arc::new)
        })?;
        clone_result(&made)
    }

    /// Calls `make`, which may run the program's code, once on replica 0. The other replicas wait, but no longer than
    /// the timeout. `part` describes the call in the error of a replica that times out.
    pub(crate) fn call_on_leader<R: Clone + Send + Sync + 'static>(
        &self,
        part: &str,
        make: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        clone_result(&*self.member.run_on_leader(self.fingerprint, part, || make().map_err(Arc::new))?)
    }

    /// Calls `make((rank, count))`, which may run the program's code, on each replica. Returns the results of all
    /// replicas to each of them. `part` describes the call in errors.
    pub(crate) fn run_on_each<T: Send + Sync + 'static>(
        &self,
        part: &str,
        make: impl FnOnce((usize, usize)) -> Result<T>,
    ) -> Result<Vec<Arc<T>>> {
        let count = self.member.size();
        let all = self.member.all_gather_with(self.fingerprint, part, |rank| match make((rank, count)) {
            Ok(made) => Ok(Arc::new(made)),
            Err(error) => Err(Arc::new(error)),
        })?;
        all.iter().map(|made| clone_result(made)).collect()
    }
}

fn clone_result<R: Clone>(made: &Result<R, Arc<Error>>) -> Result<R> {
    made.clone().map_err(Error::Shared)
}

/// Aborts the call with the other workers because of an error on this worker. Does nothing if the error comes from that
/// call, because the others then already have it.
pub(crate) fn abort_on(calling: Option<GroupCall<'_>>, error: &Error) {
    if !matches!(error, Error::Collective(_)) {
        calling.into_iter().for_each(GroupCall::abort);
    }
}

/// A closure that several threads run at the same time. Its argument is the index of the thread.
pub(crate) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads that share the work of a step.
pub(crate) struct Threads<'a> {
    pub(crate) count: usize,
    /// A function that runs a closure once on each thread.
    pub(crate) broadcast: &'a dyn Fn(&Work<'_>),
}

impl Threads<'_> {
    /// Returns a set of threads that consists only of the calling thread.
    pub(crate) fn alone() -> Threads<'static> {
        Threads { count: 1, broadcast: &|work| work(0) }
    }
}
