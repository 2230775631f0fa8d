//! The end of the servers of a cluster, when its training has ended.

use super::members::Members;
use distribute_base::internal::panicked;
use distribute_base::{Error, Result};
use distribute_cluster::{Job, Task};
use distribute_server::{CallError, ClientBuilder};
use std::time::Duration;

/// How long it may take to connect to a server that is there.
const REACHED: Duration = Duration::from_secs(5);

/// The tasks that serve this one, and how they are reached.
#[derive(Clone, Debug)]
pub struct Servers {
    clients: ClientBuilder,
    tasks: Vec<Task>,
}

impl Servers {
    /// All tasks of these jobs but this process.
    pub(super) fn new(clients: ClientBuilder, members: &Members, jobs: &[Job]) -> Self {
        let of = |job: Job| {
            let indices = members.spec.task_indices(&job).unwrap_or_default();
            indices.into_iter().map(move |index| job.clone().task(index))
        };
        let others = jobs.iter().cloned().flat_map(of).filter(|task| Some(task) != members.task.as_ref());
        Self { clients, tasks: others.collect() }
    }

    /// How they are reached.
    pub(super) fn clients(&self) -> &ClientBuilder {
        &self.clients
    }

    /// Ends them, each within `timeout`. One that cannot be reached has ended.
    ///
    /// # Errors
    /// That of the first that did not end, when all others have been asked.
    pub fn end(&self, timeout: Duration) -> Result<()> {
        let end = |task| match self.clients.connect(task, timeout.min(REACHED)) {
            Ok(server) => server.stop_server(timeout),
            Err(CallError::Connect(_)) => Ok(()),
            Err(error) => Err(error),
        };
        // At once: one that is gone is waited for.
        let ended: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = self.tasks.iter().map(|task| scope.spawn(move || end(task))).collect();
            asked.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        for result in ended {
            result.map_err(|panic| panicked(&*panic))?.map_err(Error::other)?;
        }
        Ok(())
    }
}
