//! A parameter server inside this process.

use super::channel::{Channel, ChannelError, Started, WaitForResponse};
use super::request::Request;
use super::response::Response;
use super::tables::Tables;
use std::sync::Arc;
use std::time::Duration;

/// A channel to tables in this process, for tests and for clusters whose tasks are threads.
///
/// Each request is executed on the thread that starts it. Timeouts have no effect.
#[derive(Clone, Debug)]
pub struct LocalChannel {
    name: String,
    tables: Arc<Tables>,
}

impl LocalChannel {
    /// Creates a channel to the tables of parameter server `index`.
    pub fn new(index: usize, tables: Arc<Tables>) -> Self {
        Self { name: format!("ps {index}"), tables }
    }

    /// Returns the tables that execute the requests.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }
}

impl Channel for LocalChannel {
    fn server(&self) -> &str {
        &self.name
    }

    fn is_local(&self) -> bool {
        true
    }

    fn start(&self, request: Request, _timeout: Duration) -> Result<Started, ChannelError> {
        let answer = self.tables.handle(&request);
        let server = || self.name.clone();
        Ok(Started::new(ReadyResponse(
            answer.map_err(|error| ChannelError::Refused { server: server(), refusal: error.into() }),
        )))
    }
}

/// A response that is already available.
struct ReadyResponse(Result<Response, ChannelError>);

impl WaitForResponse for ReadyResponse {
    fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
        self.0
    }
}
