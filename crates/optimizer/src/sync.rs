//! The replicas of one step, after they have met: who does what, and who waits how long.

use distribute_base::{Error, Result};
use distribute_cluster::Fingerprint;
use distribute_collective::group::GroupCall;
use distribute_collective::threads::Member;
use std::sync::Arc;

/// The replicas of one step, after they have met. Each of its calls is made by all of them, and gives all the same
/// result or error.
pub(crate) struct StepSync<'a> {
    pub(crate) member: &'a Member,
    /// The call in which they have met.
    pub(crate) fingerprint: &'a Fingerprint,
}

impl StepSync<'_> {
    /// A further part of the call with the other workers, where there are any: by replica 0, where it leads.
    pub(crate) fn calling(&self, part: &str) -> Option<GroupCall<'_>> {
        self.member.group_call(|| self.fingerprint.part(part))
    }

    /// Replica 0 leads, and the others lend it their cores. They wait without a deadline: code of users has no place
    /// here.
    pub(crate) fn run_on_leader<R: Clone + Send + Sync + 'static>(
        &self,
        lead: impl FnOnce(&Threads<'_>) -> Result<R>,
    ) -> Result<R> {
        let made = self.member.run_on_leader_with_helpers(self.fingerprint, |helpers| {
            let broadcast = |work: &Work<'_>| helpers.broadcast(work);
            lead(&Threads { count: helpers.size(), broadcast: &broadcast }).map_err(Arc::new)
        })?;
        given(&made)
    }

    /// Replica 0 calls code of users, once for all. The others wait as long as the timeout; `part` tells them for what.
    pub(crate) fn call_on_leader<R: Clone + Send + Sync + 'static>(
        &self,
        part: &str,
        make: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        given(&*self.member.run_on_leader(self.fingerprint, part, || make().map_err(Arc::new))?)
    }

    /// Each replica does its part of what calls code of users, `make((which, of how many))`. Everybody gets
    /// everybody's.
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
        all.iter().map(|made| given(made)).collect()
    }
}

fn given<R: Clone>(made: &Result<R, Arc<Error>>) -> Result<R> {
    made.clone().map_err(Error::Shared)
}

/// Tells the other workers of an error of this one's own, which ends their call. They know those of a call.
pub(crate) fn abort_on(calling: Option<GroupCall<'_>>, error: &Error) {
    if !matches!(error, Error::Collective(_)) {
        calling.into_iter().for_each(GroupCall::abort);
    }
}

/// Work that several threads run at once, each with its number.
pub(crate) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads that share the work.
pub(crate) struct Threads<'a> {
    pub(crate) count: usize,
    /// Runs a closure once on each.
    pub(crate) broadcast: &'a dyn Fn(&Work<'_>),
}

impl Threads<'_> {
    /// The calling thread only.
    pub(crate) fn alone() -> Threads<'static> {
        Threads { count: 1, broadcast: &|work| work(0) }
    }
}
