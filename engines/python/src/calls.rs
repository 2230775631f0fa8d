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
    pub channels: Arc<Vec<Connection>>,
    pub timeout: Duration,
}

impl Calls {
    /// Sends requests to servers, and returns their responses in the same order. All requests share one deadline.
    ///
    /// # Errors
    /// Returns the first error, after all requests have completed.
    pub fn all(&self, requests: Vec<(usize, Request)>) -> Result<Vec<Response>> {
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
        self.channels.get(server).ok_or_else(|| Error::Argument(format!("there is no server {server}")))
    }
}

/// Returns the error about a response of another kind.
pub fn unexpected(response: &Response) -> Error {
    Error::Other(format!("a server answers {}: are both of the same version?", response.name()))
}
