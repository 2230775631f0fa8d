//! One parameter server, as its callers see it.

use super::refusal::Refusal;
use super::request::Request;
use super::response::Response;
use std::fmt;
use std::time::Duration;

/// A way to one parameter server: in this process, or over a connection.
///
/// Calls of several servers overlap when all of them are [started](Self::start) before the first is waited for.
///
/// ```
/// use distribute_params::{Channel, LocalChannel, Request, Response, Tables};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let servers: Vec<Arc<dyn Channel>> =
///     vec![Arc::new(LocalChannel::new(0, Arc::new(Tables::new()))), Arc::new(LocalChannel::new(1, Arc::new(Tables::new())))];
/// let minute = Duration::from_secs(60);
/// let started: Vec<_> = servers.iter().map(|server| server.start(Request::List, minute)).collect::<Result<_, _>>()?;
/// for call in started {
///     assert_eq!(call.wait()?, Response::Tables(Vec::new()));
/// }
/// # Ok::<(), distribute_params::ChannelError>(())
/// ```
pub trait Channel: Send + Sync + fmt::Debug {
    /// The server, as errors name it: `ps 1`.
    fn server(&self) -> &str;

    /// Asks the server, and leaves it to the caller when to wait for the answer. The timeout is for both.
    ///
    /// A change is made once at most, however often it has to be sent, and has been made if it is answered.
    ///
    /// # Errors
    /// [`ChannelError`], where that is known already.
    fn start(&self, request: Request, timeout: Duration) -> Result<Started, ChannelError>;

    /// Asks the server, and waits for the answer.
    ///
    /// # Errors
    /// [`ChannelError`].
    fn call(&self, request: Request, timeout: Duration) -> Result<Response, ChannelError> {
        self.start(request, timeout)?.wait()
    }
}

/// A request whose answer has not been taken yet. One that is dropped is still carried out, unless the connection is lost
/// before it has arrived.
pub struct Started(Box<dyn Waiting>);

/// What waits for the answer to a request: how a [`Channel`] fills [`Started`].
pub trait Waiting: Send {
    /// Waits until the request's deadline.
    ///
    /// # Errors
    /// [`ChannelError`].
    fn wait(self: Box<Self>) -> Result<Response, ChannelError>;
}

impl Started {
    /// A request that was sent.
    pub fn new(waiting: impl Waiting + 'static) -> Self {
        Self(Box::new(waiting))
    }

    /// Waits for the answer, until the timeout of [`Channel::start`] is over.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn wait(self) -> Result<Response, ChannelError> {
        self.0.wait()
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Started")
    }
}

/// Why a request has no answer. All kinds name the server; those but [`Refused`](Self::Refused), whose text does, the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The server says no.
    #[error("{server}: {refusal}")]
    Refused {
        /// The server.
        server: String,
        /// What it says.
        refusal: Refusal,
    },
    /// No answer has come in time. A change may have been made, or may still be.
    #[error("{request}: no answer of {server} within {:?}: {reason}", distribute_cluster::rounded(*timeout))]
    Late {
        /// The server.
        server: String,
        /// The request in words.
        request: String,
        /// How long that was.
        timeout: Duration,
        /// What came of the last attempt, and what to do.
        reason: String,
    },
    /// The server cannot be reached, and trying again would not help.
    #[error("{request}: {server} cannot be reached: {reason}")]
    Unreachable {
        /// The server.
        server: String,
        /// The request in words.
        request: String,
        /// Why.
        reason: String,
    },
    /// The request is larger than the channel can send at once.
    #[error("{request}, for {server}: {what} is {found}, and may be {limit} at most; ask for less at once")]
    TooLarge {
        /// The server.
        server: String,
        /// The request in words.
        request: String,
        /// What of it.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The answer is none to this request.
    #[error("{request}: {server} answers {found}: are both of the same build?")]
    Answer {
        /// The server.
        server: String,
        /// The request in words.
        request: String,
        /// What came.
        found: String,
    },
}
