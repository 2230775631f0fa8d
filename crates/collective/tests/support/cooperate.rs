//! An exchange, followed by a call that member 0 leads.

use distribute_cluster::{Blame, Fingerprint};
use distribute_collective::threads::{Helpers, Member};
use std::sync::Arc;

pub fn cooperate<T: Send + Sync + 'static, R: Send + Sync + 'static>(
    member: &Member,
    call: Fingerprint,
    payload: T,
    lead: impl FnOnce(Vec<Arc<T>>, &Helpers<'_>) -> R,
) -> Result<Arc<R>, Arc<Blame>> {
    let payloads = member.all_gather_local(call.clone(), payload)?;
    member.run_on_leader_with_helpers(&call, |helpers| lead(payloads, helpers))
}
