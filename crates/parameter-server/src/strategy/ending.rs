//! Shutdown of the servers of a cluster after the training.

use super::members::Members;
use distribute_base::internal::panicked;
use distribute_base::{Error, Result};
use distribute_cluster::{Job, Task};
use distribute_rpc::{CallError, ClientBuilder};
use std::time::Duration;

/// The timeout for connecting to a running server.
const REACHED: Duration = Duration::from_secs(5);

/// The tasks that serve this one, and the client that connects to them.
#[derive(Clone, Debug)]
pub struct Servers {
    clients: ClientBuilder,
    tasks: Vec<Task>,
}

impl Servers {
    /// Collects all tasks of these jobs except this process.
    pub(super) fn new(clients: ClientBuilder, members: &Members, jobs: &[Job]) -> Self {
        let of = |job: Job| {
            let indices = members.spec.task_indices(&job).unwrap_or_default();
            indices.into_iter().map(move |index| job.clone().task(index))
        };
        let others = jobs.iter().cloned().flat_map(of).filter(|task| Some(task) != members.task.as_ref());
        Self { clients, tasks: others.collect() }
    }

    /// Returns the client that connects to the tasks.
    pub(super) fn clients(&self) -> &ClientBuilder {
        &self.clients
    }

    /// Stops the servers, each within `timeout`. A server that cannot be reached counts as stopped.
    ///
    /// # Errors
    /// Returns the first error of a server that did not stop, after all servers have been asked.
    pub fn end(&self, timeout: Duration) -> Result<()> {
        let end = |task| match self.clients.connect(task, timeout.min(REACHED)) {
            Ok(server) => server.stop_server(timeout),
            Err(CallError::Connect(_)) => Ok(()),
            Err(error) => Err(error),
        };
        // All are asked at once, because a server that is gone is only noticed after a timeout.
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
