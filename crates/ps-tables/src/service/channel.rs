//! [`Channel`]: a client's connection to one parameter server.

use super::refusal::Refusal;
use super::request::Request;
use super::response::Response;
use std::fmt;
use std::time::Duration;

/// A connection to one parameter server, in this process or another one.
///
/// Calls to several servers overlap if all of them are [started](Self::start) before the caller waits for the first
/// response.
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

    /// Returns `true` if [`start`](Self::start) executes a request before it returns. Start requests of other channels
    /// first, so that their servers work at the same time.
    fn is_local(&self) -> bool {
        false
    }

    /// Sends a request, whose response the caller waits for later. The timeout includes both sending and waiting.
    ///
    /// A change is applied at most once, even if the channel sends the request several times. When the response
    /// arrives, the change has been applied.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if the request fails immediately.
    fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError>;

    /// Closes the connection, if there is one. A later request may open another one.
    fn close(&self) {}

    /// Sends a request, and waits for the response.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if the server rejects the request, or if there is no valid response.
    fn call(&self, request: Request, timeout: Duration) -> Result<Response, ChannelError> {
        self.start(request, timeout)?.wait()
    }
}

/// A request in flight. If this handle is dropped, the server still executes the request, unless the connection is lost
/// before the request arrives.
pub struct Started(Box<dyn WaitForResponse>);

/// A wait for the response to a request, which implementations of [`Channel`] provide for [`Started`].
pub trait WaitForResponse: Send {
    /// Waits for the response until the deadline of the request.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if the server rejects the request, or if there is no valid response.
    fn wait(self: Box<Self>) -> Result<Response, ChannelError>;
}

impl Started {
    /// Creates the handle of a request that was sent, whose response `waiting` waits for.
    pub fn new(waiting: impl WaitForResponse + 'static) -> Self {
        Self(Box::new(waiting))
    }

    /// Waits for the response, until the timeout of [`Channel::start`] has passed.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if the server rejects the request, or if there is no valid response.
    pub fn wait(self) -> Result<Response, ChannelError> {
        self.0.wait()
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Started")
    }
}

/// The reason why a request has failed. Each variant contains the name of the server and, except for
/// [`Refused`](Self::Refused), a description of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The server has rejected the request.
    #[error("{server}: {refusal}")]
    Refused {
        /// The name of the server.
        server: String,
        /// The reason why the request was rejected.
        refusal: Refusal,
    },
    /// There was no response before the timeout. A change may have been applied, or may still be applied.
    #[error("{request}: no answer from {server} within {:?}: {reason}", distribute_cluster::rounded(*timeout))]
    TimedOut {
        /// The name of the server.
        server: String,
        /// A description of the request.
        request: String,
        /// The timeout that has passed.
        timeout: Duration,
        /// The result of the last attempt, and a remedy.
        reason: String,
    },
    /// The server cannot be reached, and a retry would not help.
    #[error("{request}: {server} cannot be reached: {reason}")]
    Unreachable {
        /// The name of the server.
        server: String,
        /// A description of the request.
        request: String,
        /// The reason why the server cannot be reached.
        reason: String,
    },
    /// The request is too large for the channel.
    #[error("{request}, for {server}: {what} is {found}, but the maximum is {limit}; request less at once")]
    TooLarge {
        /// The name of the server.
        server: String,
        /// A description of the request.
        request: String,
        /// The name of the quantity that is too large.
        what: &'static str,
        /// The value of this quantity.
        found: u64,
        /// The maximum value of this quantity.
        limit: u64,
    },
    /// The response does not match the request.
    #[error("{request}: {server} answers {found}: are both of the same build?")]
    Answer {
        /// The name of the server.
        server: String,
        /// A description of the request.
        request: String,
        /// A description of the response.
        found: String,
    },
}
