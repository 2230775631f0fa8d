//! Stopping the servers of a cluster after training.

use distribute_base::internal::panicked;
use distribute_base::{Error, Result};
use distribute_cluster::Task;
use distribute_rpc::{CallError, ClientBuilder};
use std::time::Duration;

/// The maximum time to connect to a server that is to be stopped.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers of other tasks, which end with the training run, and the builder of clients that connect to them.
#[derive(Clone, Debug)]
pub struct Servers {
    clients: ClientBuilder,
    tasks: Vec<Task>,
}

impl Servers {
    /// Creates the handle to the servers of the given tasks. `clients` connects to them.
    pub fn new(clients: ClientBuilder, tasks: Vec<Task>) -> Self {
        Self { clients, tasks }
    }

    /// Returns the builder of clients that connect to the tasks.
    pub fn clients(&self) -> &ClientBuilder {
        &self.clients
    }

    /// Stops the servers, and waits at most `timeout` for each. A server that cannot be reached counts as stopped.
    ///
    /// # Errors
    /// Returns the first error of a server that did not stop, after asking all servers.
    pub fn end(&self, timeout: Duration) -> Result<()> {
        let end = |task| match self.clients.connect(task, timeout.min(CONNECT_TIMEOUT)) {
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
