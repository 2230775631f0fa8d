//! The transport whose workers are threads of this process, for tests, examples and first experiments.

use super::{Frame, Group, Inbox, Transport};
use distribute_cluster::{World, WorldError};
use std::sync::Arc;

/// Moves frames to inboxes of the same process. Heads are encoded and decoded as between processes; bodies are shared.
struct Memory {
    worker: usize,
    inboxes: Arc<Vec<Inbox>>,
}

/// The groups of all workers of a world in this process, by worker.
///
/// A worker is lost to the others when its group [ends](Group::end), and when its group and sessions have all been dropped.
///
/// # Errors
/// [`WorldError`] if the numbers don't make a world.
pub fn groups(workers: usize, replicas: usize) -> Result<Vec<Group>, WorldError> {
    let inboxes = Arc::new((0..workers).map(|_| Inbox::new(workers)).collect::<Vec<_>>());
    let group = |worker| {
        let world = World::new(workers, worker, replicas)?;
        let transport = Memory { worker, inboxes: inboxes.clone() };
        Ok(Group::new(world, Arc::new(transport), inboxes[worker].clone()))
    };
    World::new(workers, 0, replicas)?;
    (0..workers).map(group).collect()
}

impl Transport for Memory {
    fn send(&self, to: usize, frame: Frame) {
        let Some(inbox) = self.inboxes.get(to) else { return };
        let sent = frame.encode().and_then(|(head, body)| Frame::decode(&head, body));
        match sent {
            Ok(frame) => inbox.deliver(self.worker, frame),
            Err(error) => inbox.lose(self.worker, format!("its frame cannot be read: {error}")),
        }
    }

    fn close(&self) {
        for (_, inbox) in self.inboxes.iter().enumerate().filter(|(worker, _)| *worker != self.worker) {
            inbox.lose(self.worker, "it has ended");
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} of {})", self.worker, self.inboxes.len())
    }
}
