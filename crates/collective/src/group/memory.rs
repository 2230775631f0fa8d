//! Groups whose workers are threads of this process, for tests, examples and first experiments.

use super::{Group, Inbox};
use distribute_cluster::{World, WorldError};
use distribute_net::{Receiver, memory};
use std::sync::Arc;

/// The groups of all workers of a world in this process, by worker.
///
/// A worker is lost to the others when its group [ends](Group::end), and when its group and sessions have all been dropped.
///
/// # Errors
/// [`WorldError`] if the numbers don't make a world.
pub fn groups(workers: usize, replicas: usize) -> Result<Vec<Group>, WorldError> {
    let worlds = (0..workers.max(1)).map(|worker| World::new(workers, worker, replicas));
    let worlds = worlds.collect::<Result<Vec<_>, _>>()?;
    let inboxes: Vec<_> = worlds.iter().map(|_| Inbox::new(workers)).collect();
    let receivers = inboxes.iter().map(|inbox| Arc::new(inbox.clone()) as Arc<dyn Receiver>).collect();
    let transports = memory::transports(receivers);
    let all = worlds.into_iter().zip(transports).zip(inboxes);
    Ok(all.map(|((world, transport), inbox)| Group::new(world, Arc::new(transport), inbox)).collect())
}
