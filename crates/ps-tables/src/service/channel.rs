//! The client's view of one parameter server.

use super::refusal::Refusal;
use super::request::Request;
use super::response::Response;
use std::fmt;
use std::time::Duration;

/// A connection to one parameter server, in this process or another one.
///
/// Calls to several servers overlap if all of them are [started](Self::start) before the first is waited for.
///
/// ```
/// use distribute_ps_tables::{Channel, LocalChannel, Request, Response, Tables};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let servers: Vec<Arc<dyn Channel>> =
///     (0..2).map(|i| Arc::new(LocalChannel::new(i, Arc::new(Tables::new()))) as Arc<dyn Channel>).collect();
/// let minute = Duration::from_secs(60);
/// let started: Vec<_> = servers.iter().map(|server| server.start(Request::List, minute)).collect::<Result<_, _>>()?;
/// for call in started {
///     assert_eq!(call.wait()?, Response::Tables(Vec::new()));
/// }
/// # Ok::<(), distribute_ps_tables::ChannelError>(())
/// ```
pub trait Channel: Send + Sync + fmt::Debug {
    /// Returns the name of the server in errors, for example `ps 1`.
    fn server(&self) -> &str;

    /// Sends a request. The caller waits for the response later. The timeout applies to both together.
    ///
    /// A change is applied at most once, even if the request is sent several times. After a response, it has
    /// been applied.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if the request fails immediately.
    fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError>;

    /// Sends a request, and waits for the response.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if there is no response.
    fn call(&self, request: Request, timeout: Duration) -> Result<Response, ChannelError> {
        self.start(request, timeout)?.wait()
    }
}

/// A request in flight. If it is dropped, the server still executes it, unless the connection is lost before
/// the request has arrived.
pub struct Started(Box<dyn Waiting>);

/// The implementation of [`Started`] by a [`Channel`]: it waits for the response to a request.
pub trait Waiting: Send {
    /// Waits until the deadline of the request.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if there is no response.
    fn wait(self: Box<Self>) -> Result<Response, ChannelError>;
}

impl Started {
    /// Creates the handle of a request that was sent.
    pub fn new(waiting: impl Waiting + 'static) -> Self {
        Self(Box::new(waiting))
    }

    /// Waits for the response, until the timeout of [`Channel::start`] has passed.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if there is no response.
    pub fn wait(self) -> Result<Response, ChannelError> {
        self.0.wait()
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Started")
    }
}

/// The reason why a request has no response. All variants name the server and the request;
/// [`Refused`](Self::Refused) names the request in its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The server has refused the request.
    #[error("{server}: {refusal}")]
    Refused {
        /// The server.
        server: String,
        /// The refusal.
        refusal: Refusal,
    },
    /// There was no response in time. A change may have been applied, or may still be applied.
    #[error("{request}: no answer of {server} within {:?}: {reason}", distribute_cluster::rounded(*timeout))]
    Late {
        /// The server.
        server: String,
        /// A description of the request.
        request: String,
        /// The timeout.
        timeout: Duration,
        /// The result of the last attempt, and advice.
        reason: String,
    },
    /// The server cannot be reached, and a retry would not help.
    #[error("{request}: {server} cannot be reached: {reason}")]
    Unreachable {
        /// The server.
        server: String,
        /// A description of the request.
        request: String,
        /// The cause.
        reason: String,
    },
    /// The request is larger than the channel can send at once.
    #[error("{request}, for {server}: {what} is {found}, and may be {limit} at most; ask for less at once")]
    TooLarge {
        /// The server.
        server: String,
        /// A description of the request.
        request: String,
        /// The quantity that is too large.
        what: &'static str,
        /// The size of the request.
        found: u64,
        /// The maximum size.
        limit: u64,
    },
    /// The response does not match the request.
    #[error("{request}: {server} answers {found}: are both of the same build?")]
    Answer {
        /// The server.
        server: String,
        /// A description of the request.
        request: String,
        /// The response.
        found: String,
    },
}
