//! [`Client`]: a connection through which threads call the services of a server.

// - **INV-33** A call is sent at most once, and ends: by its answer, at its deadline, or with its connection, whose
//   loss ends all calls at once, including those that wait for the window. A call that has ended without an answer
//   keeps its slot in the window until the server has answered. Tests: `rpc/tests/it/calls.rs`,
//   `rpc/tests/it/failures.rs`.

use crate::control;
use crate::error::CallError;
use crate::frame::{Frame, LONGEST_NAME};
use crate::pending::{Pending, State};
use bytes::Bytes;
use distribute_cluster::{Address, ClusterSpec, Deadline, Stopwatch, Task};
use distribute_net::wire::Limits;
use distribute_net::{
    Access, Connector, Credentials, Endpoint, Message, PollOutcome, Settings, SharedMemory,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The time for which a waiting thread polls the sockets for its answer before it sleeps.
const POLL_TIME: Duration = Duration::from_millis(20);

/// The maximum time for which a thread sleeps while another one polls the sockets.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// The minimum length in bytes of bodies that are passed to a server in shared memory.
const MIN_SHARED_BODY: usize = 256 << 10;

/// The settings of a task's connections to servers, and the cluster that contains these.
#[must_use = "a builder does nothing until `connect` is called"]
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    cluster: ClusterSpec,
    from: Task,
    credentials: Credentials,
    window: usize,
    settings: Settings,
    shared_memory: SharedMemory,
}

impl ClientBuilder {
    /// Creates the settings for connections from task `from` to servers in `cluster`.
    pub fn new(cluster: ClusterSpec, from: Task) -> Self {
        let (credentials, settings) = (Credentials::default(), Settings::default());
        Self { cluster, from, credentials, window: 64, settings, shared_memory: SharedMemory::default() }
    }

    /// Sets the credentials of the job's tasks, and the protection of connections. Previous credentials are replaced.
    /// The default is the secret in `DISTRIBUTE_SECRET`, if it is set.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Allows calls to servers of a job with any name.
    pub(crate) fn any_job(mut self) -> Self {
        self.credentials = self.credentials.any_job();
        self
    }

    /// Sets the maximum number of unanswered calls per connection. The default is 64, and the minimum 1. Further calls
    /// wait until others are answered.
    pub fn window(mut self, calls: usize) -> Self {
        self.window = calls.max(1);
        self
    }

    /// Sets the options of connections, and the maximum lengths of the heads and bodies of calls and answers.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets whether calls to a server on this machine are sent through shared memory. By default, shared memory is used
    /// if both sides support it.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Connects to the server of a task of the cluster, and retries until the server is running or `timeout` has
    /// passed.
    ///
    /// # Errors
    /// - [`CallError::Cluster`]: the task is not in the cluster.
    /// - [`CallError::Access`]: connections would be unprotected, or the secret or certificates cannot be used.
    /// - [`CallError::Connect`]: the connection cannot be established. If the server could not be reached within
    ///   `timeout`, the error contains the reason for the latest failure.
    pub fn connect(&self, to: &Task, timeout: Duration) -> Result<Client, CallError> {
        let address = self.cluster.task_address(&to.job, to.index)?;
        let access = self.credentials.access(self.cluster.tasks().map(|(_, address)| address))?;
        Client::open(self, access, to, address, timeout)
    }
}

/// A connection to the server of a task, through which threads call its services.
///
/// Any number of threads can make calls at the same time, and answers arrive in any order. If the connection fails, all
/// calls fail immediately, including those that wait for space in the window. To continue, connect again.
pub struct Client(Arc<Link>);

/// The state that a client shares with its started calls.
struct Link {
    endpoint: Endpoint,
    pending: Arc<Pending>,
    window: usize,
    limits: Limits,
}

impl Client {
    /// Connects task `from` to the server of task `to`, with the default settings of a [`ClientBuilder`].
    ///
    /// # Errors
    /// Returns the errors of [`ClientBuilder::connect`].
    pub fn connect(
        cluster: &ClusterSpec,
        from: Task,
        to: &Task,
        timeout: Duration,
    ) -> Result<Self, CallError> {
        ClientBuilder::new(cluster.clone(), from).connect(to, timeout)
    }

    fn open(
        builder: &ClientBuilder,
        access: Access,
        to: &Task,
        address: &Address,
        timeout: Duration,
    ) -> Result<Self, CallError> {
        let ClientBuilder { from, window, settings, shared_memory, credentials, .. } = builder;
        let connector = Connector::new(from.clone(), access).job(credentials.job_name());
        let connector = connector.settings(*settings).shared_memory(*shared_memory);
        let pending = Arc::<Pending>::default();
        let endpoint = connector.connect(to, address, pending.clone(), Deadline::after(timeout))?;
        Ok(Self(Arc::new(Link { endpoint, pending, window: *window, limits: settings.limits })))
    }

    /// Returns the task of the server.
    pub fn task(&self) -> &Task {
        self.0.endpoint.peer()
    }

    /// Sets a function that is called once, with the reason, when the connection fails. If it has already failed, the
    /// function is called immediately. The function runs on the thread that detects the failure, and must not block.
    /// Another call of this method replaces the function.
    pub fn on_loss(&self, call: impl FnOnce(&str) + Send + 'static) {
        self.0.pending.on_loss(call);
    }

    /// Calls a service, and waits for its answer. `timeout` includes the time to wait for space in the
    /// [window](ClientBuilder::window).
    ///
    /// The connection can be used again after any error except [`CallError::Lost`].
    ///
    /// # Errors
    /// Returns the errors of [`start`](Self::start) and of [`Started::wait`].
    pub fn call(&self, service: &str, message: Message, timeout: Duration) -> Result<Message, CallError> {
        let waited = Stopwatch::start();
        let call = self.start(service, message, timeout)?;
        call.wait(timeout.saturating_sub(waited.elapsed()))
    }

    /// Starts a call to a service, and returns without waiting for the answer. If the [window](ClientBuilder::window)
    /// is full of unanswered calls, first waits at most `timeout` for space.
    ///
    /// # Errors
    /// - [`CallError::TooLong`]: the name, the head or the body is too long to be sent.
    /// - [`CallError::WindowFull`]: the window was still full after `timeout`. The call was not sent.
    /// - [`CallError::Lost`]: the connection has failed.
    pub fn start(&self, service: &str, message: Message, timeout: Duration) -> Result<Started, CallError> {
        let link = &*self.0;
        link.check(service, "a name", service.len(), LONGEST_NAME)?;
        // The head also has the number and the name of the service.
        let limit = (link.limits.head as usize).saturating_sub(LONGEST_NAME + 16);
        link.check(service, "a head", message.head.len(), limit)?;
        let limit = usize::try_from(link.limits.body).unwrap_or(usize::MAX);
        link.check(service, "a body", message.body.len(), limit)?;
        let waited = Stopwatch::start();
        let window = link.window;
        let id = link.wait_until(
            timeout,
            |state| state.lost().is_some() || state.has_room(window),
            |state| match state.lost() {
                Some(reason) => Some(Err(reason.to_owned())),
                None => state.enter(window).map(Ok),
            },
        );
        let id = match id {
            Some(Ok(id)) => id,
            Some(Err(reason)) => return Err(link.lost(service, reason)),
            None => {
                let (service, task, address) = link.names(service);
                let waited = waited.elapsed();
                return Err(CallError::WindowFull { service, task, address, window, waited });
            }
        };
        let message = Message { body: link.in_shared_memory(message.body), ..message };
        link.endpoint.send(Frame::Call { id, service: service.to_owned(), message }.encode());
        Ok(Started { link: self.0.clone(), id, service: service.to_owned(), waited })
    }

    /// Ends the server. Only the leading task of the cluster may do this: the chief, or worker 0 if there is no chief,
    /// or the first task if there is neither.
    ///
    /// # Errors
    /// Returns the errors of [`call`](Self::call). For other callers, the error contains a fault of kind
    /// [`NotAllowed`](crate::FaultKind::NotAllowed).
    pub fn stop_server(&self, timeout: Duration) -> Result<(), CallError> {
        self.call(control::NAME, Message::new(control::STOP, ""), timeout).map(drop)
    }
}

impl Link {
    fn check(&self, service: &str, what: &'static str, length: usize, limit: usize) -> Result<(), CallError> {
        if length <= limit {
            return Ok(());
        }
        let (service, task, address) = self.names(service);
        Err(CallError::TooLong { service, task, address, what, length, limit })
    }

    /// Returns the body to send. If both sides share memory, a large body is copied to memory that the server reads
    /// directly.
    fn in_shared_memory(&self, body: Bytes) -> Bytes {
        if body.len() < MIN_SHARED_BODY {
            return body;
        }
        match self.endpoint.memory(body.len()) {
            Some(mut region) => {
                region.write(0, &body);
                region.freeze()
            }
            None => body,
        }
    }

    fn lost(&self, service: &str, reason: String) -> CallError {
        let (service, task, address) = self.names(service);
        CallError::Lost { service, task, address, reason }
    }

    fn names(&self, service: &str) -> (String, Task, String) {
        let service = service.get(..service.floor_char_boundary(LONGEST_NAME)).unwrap_or_default();
        (service.to_owned(), self.endpoint.peer().clone(), self.endpoint.address().to_owned())
    }

    /// Waits until `take` returns a value; returns `None` after `timeout`. `peek` must return whether `take` would
    /// return a value. At first this thread polls the sockets itself, because waking it for an answer would take
    /// longer.
    fn wait_until<T>(
        &self,
        timeout: Duration,
        peek: impl Fn(&State) -> bool,
        take: impl Fn(&mut State) -> Option<T>,
    ) -> Option<T> {
        let (mut deadline, eager) = (Deadline::after(timeout), Deadline::after(POLL_TIME));
        let pending = &*self.pending;
        loop {
            let mut state = pending.lock();
            if let Some(found) = take(&mut state) {
                return Some(found);
            }
            let slice = deadline.look();
            if slice.is_zero() {
                return None;
            }
            if eager.has_passed() {
                pending.wait(state, slice);
            } else {
                drop(state);
                let there = || peek(&pending.lock());
                if let PollOutcome::Elsewhere | PollOutcome::Never =
                    self.endpoint.poll(slice.min(eager.remaining()), &there)
                {
                    let state = pending.lock();
                    if !peek(&state) {
                        pending.wait(state, MAX_SLEEP.min(slice));
                    }
                }
            }
            deadline.look();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.0)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.endpoint.peer(), self.endpoint.address())
    }
}

/// A call whose answer has not been taken yet.
///
/// If this value is dropped, the call is still executed, and occupies space in the window until the server has
/// answered. The connection stays open as long as any of its calls exists.
#[derive(Debug)]
pub struct Started {
    link: Arc<Link>,
    id: u64,
    service: String,
    waited: Stopwatch,
}

impl Started {
    /// Returns whether the answer was received.
    pub fn is_answered(&self) -> bool {
        self.link.pending.lock().is_answered(self.id)
    }

    /// Waits until the answer has arrived or the connection has failed, and returns `true`; [`wait`](Self::wait) then
    /// does not block. Returns `false` after `timeout`.
    pub fn ready(&self, timeout: Duration) -> bool {
        let is_ready = |state: &State| state.is_answered(self.id) || state.lost().is_some();
        self.link.wait_until(timeout, is_ready, |state| is_ready(state).then_some(())).is_some()
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// - [`CallError::Failed`]: the service has answered with an error.
    /// - [`CallError::TimedOut`]: there was no answer within `timeout`. The call may still be executed.
    /// - [`CallError::Lost`]: the connection has failed. The call may have been executed.
    pub fn wait(self, timeout: Duration) -> Result<Message, CallError> {
        let id = self.id;
        let answer = self.link.wait_until(
            timeout,
            |state| state.is_answered(id) || state.lost().is_some(),
            |state| match state.take(id) {
                Some(answer) => Some(Ok(answer)),
                None => state.lost().map(|reason| Err(reason.to_owned())),
            },
        );
        let (service, task, address) = self.link.names(&self.service);
        match answer {
            Some(Ok(Ok(message))) => Ok(message),
            Some(Ok(Err(fault))) => Err(CallError::Failed { service, task, address, fault }),
            Some(Err(reason)) => Err(CallError::Lost { service, task, address, reason }),
            None => Err(CallError::TimedOut { service, task, address, waited: self.waited.elapsed() }),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.link.pending.abandon(self.id);
    }
}
