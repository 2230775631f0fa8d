//! A parameter server inside this process.

use super::channel::{Channel, ChannelError, Started, Waiting};
use super::request::Request;
use super::response::Response;
use super::tables::Tables;
use std::sync::Arc;
use std::time::Duration;

/// A channel to tables in this process, for clusters whose tasks are threads, and for tests.
///
/// Requests are executed on the thread that starts them.
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

    /// Returns the tables.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }
}

impl Channel for LocalChannel {
    fn server(&self) -> &str {
        &self.name
    }

    fn start(&self, request: Request, _timeout: Duration) -> Result<Started, ChannelError> {
        let answer = self.tables.handle(&request);
        let server = || self.name.clone();
        Ok(Started::new(Answered(
            answer.map_err(|error| ChannelError::Refused { server: server(), refusal: error.into() }),
        )))
    }
}

/// A response that is already available.
struct Answered(Result<Response, ChannelError>);

impl Waiting for Answered {
    fn wait(self: Box<Self>) -> Result<Response, ChannelError> {
        self.0
    }
}
