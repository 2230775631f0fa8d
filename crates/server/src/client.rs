//! What calls the services of a server.

use crate::control;
use crate::error::CallError;
use crate::frame::{Frame, LONGEST_NAME};
use crate::pending::{Pending, State};
use bytes::Bytes;
use distribute_cluster::{Address, ClusterSpec, Deadline, Stopwatch, Task};
use distribute_net::wire::Limits;
use distribute_net::{Access, Connector, Credentials, Drive, Endpoint, Message, Settings, SharedMemory};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a thread looks for its answer by itself before it sleeps until it is woken.
const EAGER: Duration = Duration::from_millis(20);

/// How long a thread sleeps while another one moves the bytes.
const NAP: Duration = Duration::from_millis(1);

/// Bodies from here on are lent to a server that shares memory.
const LENT: usize = 256 << 10;

/// What clients of one task are set up by: whom it can reach, and how.
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
    /// What the clients of task `from` of this cluster are set up by.
    pub fn new(cluster: ClusterSpec, from: Task) -> Self {
        let (credentials, settings) = (Credentials::default(), Settings::default());
        Self { cluster, from, credentials, window: 64, settings, shared_memory: SharedMemory::default() }
    }

    /// How the tasks of the job know each other, and protect connections, in place of what was said before. By default by the secret in
    /// `DISTRIBUTE_SECRET`, if there is one.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Calls servers of a job whatever its name is.
    pub(crate) fn any_job(mut self) -> Self {
        self.credentials = self.credentials.any_job();
        self
    }

    /// How many calls of a connection may wait for answers at once; 64 by default. Those beyond wait for room.
    pub fn window(mut self, calls: usize) -> Self {
        self.window = calls.max(1);
        self
    }

    /// How connections behave, and how long the heads and bodies of calls and answers may be.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Whether calls of a server on this machine go through memory that both share; wherever both can, by default.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Connects to the server of a task of the cluster, again and again until it is there.
    ///
    /// # Errors
    /// [`CallError::Cluster`], [`CallError::Access`]; [`CallError::Connect`] at once where the server refuses this task, else
    /// after `timeout`, with what came of the last attempt.
    pub fn connect(&self, to: &Task, timeout: Duration) -> Result<Client, CallError> {
        let address = self.cluster.task_address(&to.job, to.index)?;
        let access = self.credentials.access(self.cluster.tasks().map(|(_, address)| address))?;
        Client::open(self, access, to, address, timeout)
    }
}

/// A connection to the server of a task, by which threads call its services.
///
/// Any number of threads call at once, and answers come in any order. When the connection is lost, all calls fail at once,
/// those included that wait for room; a new one is made by connecting again.
pub struct Client(Arc<Link>);

/// What a client shares with the calls that it has started.
struct Link {
    endpoint: Endpoint,
    pending: Arc<Pending>,
    window: usize,
    limits: Limits,
}

impl Client {
    /// Connects task `from` to the server of task `to`, with the settings of a [`ClientBuilder`] by default.
    ///
    /// # Errors
    /// See [`ClientBuilder::connect`].
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

    /// The task that is called.
    pub fn task(&self) -> &Task {
        self.0.endpoint.peer()
    }

    /// Calls a function once, with the reason, when the connection is lost; at once if it is lost already. The function runs on the thread that
    /// notices, and must not wait. A later function takes its place.
    pub fn on_loss(&self, call: impl FnOnce(&str) + Send + 'static) {
        self.0.pending.on_loss(call);
    }

    /// Calls a service and waits for its answer: `timeout` is for both, room and answer.
    ///
    /// # Errors
    /// [`CallError`]. The connection can be used again, but after [`CallError::Lost`].
    pub fn call(&self, service: &str, message: Message, timeout: Duration) -> Result<Message, CallError> {
        let waited = Stopwatch::start();
        let call = self.start(service, message, timeout)?;
        call.wait(timeout.saturating_sub(waited.elapsed()))
    }

    /// Calls a service, and leaves it to the caller when to wait for the answer. Where too many calls have no answer yet, it
    /// waits for room.
    ///
    /// # Errors
    /// [`CallError::TooLong`], [`CallError::Room`], [`CallError::Lost`].
    pub fn start(&self, service: &str, message: Message, timeout: Duration) -> Result<Started, CallError> {
        let link = &*self.0;
        link.check(service, "a name", service.len(), LONGEST_NAME)?;
        // With room for what stands before it.
        let limit = (link.limits.head as usize).saturating_sub(LONGEST_NAME + 16);
        link.check(service, "a head", message.head.len(), limit)?;
        let limit = usize::try_from(link.limits.body).unwrap_or(usize::MAX);
        link.check(service, "a body", message.body.len(), limit)?;
        let waited = Stopwatch::start();
        let window = link.window;
        let id = link.until(
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
                return Err(CallError::Room { service, task, address, window, waited });
            }
        };
        let message = Message { body: link.lent(message.body), ..message };
        link.endpoint.send(Frame::Call { id, service: service.to_owned(), message }.encode());
        Ok(Started { link: self.0.clone(), id, service: service.to_owned(), waited })
    }

    /// Ends the server. Only the chief may or, without one, worker 0; without either, the first task of the cluster.
    ///
    /// # Errors
    /// [`CallError`], with a fault of [`NotAllowed`](crate::FaultKind::NotAllowed) for others.
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

    /// A body as it is sent: where both sides share memory, a large one lies there, instead of going through piece by piece.
    fn lent(&self, body: Bytes) -> Bytes {
        if body.len() < LENT {
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

    /// Waits for something that `take` takes once `peek` sees it; `None` at the deadline. First it moves the bytes itself, so
    /// that no other thread has to be woken for an answer that comes soon.
    fn until<T>(
        &self,
        timeout: Duration,
        peek: impl Fn(&State) -> bool,
        take: impl Fn(&mut State) -> Option<T>,
    ) -> Option<T> {
        let (mut deadline, eager) = (Deadline::after(timeout), Deadline::after(EAGER));
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
                if let Drive::Elsewhere | Drive::Never =
                    self.endpoint.drive(slice.min(eager.remaining()), &there)
                {
                    let state = pending.lock();
                    if !peek(&state) {
                        pending.wait(state, NAP.min(slice));
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

/// A call whose answer has not been taken yet. One that is dropped is still carried out, and keeps its room until then. The
/// connection stays as long as there is one of its calls.
#[derive(Debug)]
pub struct Started {
    link: Arc<Link>,
    id: u64,
    service: String,
    waited: Stopwatch,
}

impl Started {
    /// Whether the answer has come.
    pub fn is_answered(&self) -> bool {
        self.link.pending.lock().is_answered(self.id)
    }

    /// Waits until the answer has come, or is known never to, and says whether it is so: [`wait`](Self::wait) doesn't wait then.
    pub fn ready(&self, timeout: Duration) -> bool {
        let is_ready = |state: &State| state.is_answered(self.id) || state.lost().is_some();
        self.link.until(timeout, is_ready, |state| is_ready(state).then_some(())).is_some()
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`CallError::Failed`], [`CallError::Late`], [`CallError::Lost`].
    pub fn wait(self, timeout: Duration) -> Result<Message, CallError> {
        let id = self.id;
        let answer = self.link.until(
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
            None => Err(CallError::Late { service, task, address, waited: self.waited.elapsed() }),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.link.pending.abandon(self.id);
    }
}
