//! Requests to several servers at once, and their responses.

use crate::errors::{Error, Result};
use distribute_cluster::Deadline;
use distribute_ps_server::Connection;
use distribute_ps_tables::{Channel, Request, Response};
use std::sync::Arc;
use std::time::Duration;

/// The connections to all servers, in the order of their indices.
#[derive(Clone)]
pub struct Calls {
    channels: Arc<Channels>,
    timeout: Duration,
}

/// The connections of one process. After a fork, the child would share the sockets and the numbers of requests that
/// change something. Servers would take its requests for repetitions of the parent's and drop them, so a forked process
/// must not use the connections.
struct Channels {
    process: u32,
    all: Vec<Connection>,
}

impl Channels {
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        if self.is_forked() {
            // The sockets are still in use by the first process, and must not be shut down.
            std::mem::forget(std::mem::take(&mut self.all));
        }
    }
}

impl Calls {
    /// Creates the connections of this process. `timeout` limits each call of [`all`](Self::all).
    pub fn new(all: Vec<Connection>, timeout: Duration) -> Self {
        Self { channels: Arc::new(Channels { process: std::process::id(), all }), timeout }
    }

    /// Returns the number of servers.
    pub fn servers(&self) -> usize {
        self.channels.all.len()
    }

    /// Closes the connections, unless they belong to the process that has forked this one.
    pub fn close(&self) {
        if !self.channels.is_forked() {
            self.channels.all.iter().for_each(|channel| channel.close());
        }
    }

    /// Sends requests to servers, and returns their responses in the same order. All requests share one deadline.
    ///
    /// # Errors
    /// Returns the first error, after all requests have completed. In a process that was forked after the connections
    /// were created, nothing is sent.
    pub fn all(&self, requests: Vec<(usize, Request)>) -> Result<Vec<Response>> {
        if self.channels.is_forked() {
            return Err(Error::Forked);
        }
        let deadline = Deadline::after(self.timeout);
        let started: Vec<_> = requests
            .into_iter()
            .map(|(server, request)| {
                self.channel(server)?.start(request, deadline.remaining()).map_err(Error::from)
            })
            .collect();
        let answers: Vec<Result<Response>> =
            started.into_iter().map(|started| Ok(started?.wait()?)).collect();
        answers.into_iter().collect()
    }

    fn channel(&self, server: usize) -> Result<&Connection> {
        self.channels.all.get(server).ok_or_else(|| Error::Argument(format!("there is no server {server}")))
    }
}

/// Returns the error for a response that does not belong to the request.
pub fn unexpected(response: &Response) -> Error {
    Error::Other(format!("a server answers {}: are both of the same version?", response.name()))
}
