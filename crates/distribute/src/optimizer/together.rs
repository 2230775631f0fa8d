//! The replicas of one step, after they have met: who does what, and who waits how long.

use super::pass::{Work, Workers};
use crate::{Error, Result};
use distribute_cluster::Fingerprint;
use distribute_collective::threads::Member;
use std::sync::Arc;

/// The replicas of one step. Each of its calls is made by all of them, and gives all the same result or error.
pub(super) enum Together<'a> {
    Alone,
    Members(&'a Member, &'a Fingerprint),
}

impl Together<'_> {
    /// Replica 0 leads, and the others lend it their cores. They wait without a deadline: code of users has no place here.
    pub(super) fn lead<R: Clone + Send + Sync + 'static>(
        &self,
        lead: impl FnOnce(&Workers<'_>) -> Result<R>,
    ) -> Result<R> {
        match self {
            Together::Alone => lead(&Workers::alone()).map_err(shared),
            Together::Members(member, call) => {
                let made = member.lead(call, |helpers| {
                    let broadcast = |work: &Work<'_>| helpers.broadcast(work);
                    lead(&Workers { count: helpers.size(), broadcast: &broadcast }).map_err(Arc::new)
                })?;
                given(&made)
            }
        }
    }

    /// Replica 0 calls code of users, once for all. The others wait as long as the timeout; `part` tells them for what.
    pub(super) fn once<R: Clone + Send + Sync + 'static>(
        &self,
        part: &str,
        make: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        match self {
            Together::Alone => make().map_err(shared),
            Together::Members(member, call) => {
                given(&*member.hand_out(call, part, || make().map_err(Arc::new))?)
            }
        }
    }

    /// Each replica calls code of users, with its rank and how many there are, and waits for the others as long as the
    /// timeout. Of several errors all get the lowest rank's.
    pub(super) fn each<T: Send + Sync + 'static>(
        &self,
        part: &str,
        make: impl FnOnce((usize, usize)) -> Result<T>,
    ) -> Result<Vec<Arc<T>>> {
        match self {
            Together::Alone => Ok(vec![Arc::new(make((0, 1)).map_err(shared)?)]),
            Together::Members(member, call) => {
                let count = member.size();
                let all = member.each(call, part, |rank| match make((rank, count)) {
                    Ok(made) => Ok(Arc::new(made)),
                    Err(error) => Err(Arc::new(error)),
                })?;
                all.iter().map(|made| given(made)).collect()
            }
        }
    }
}

/// The one error is told on every replica: it is about the step, not about a replica.
fn given<R: Clone>(made: &Result<R, Arc<Error>>) -> Result<R> {
    made.clone().map_err(Error::Shared)
}

fn shared(error: Error) -> Error {
    Error::Shared(Arc::new(error))
}
