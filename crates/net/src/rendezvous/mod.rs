//! How the workers of a world find each other.
//!
//! | module | what it is |
//! |---|---|
//! | [`listener`] | [`Listener`]: where a worker can be reached |
//! | [`membership`] | who has come, may come and is missing: pure |
//! | [`progress`] | [`Progress`]: how far it is |
//! | [`note`] | what the leader tells those that have joined |
//! | [`error`] | [`JoinError`] |
//! | [`meeting`] | `Meeting`: what a worker does about those that come and those it connects to: pure |
//! | [`quorum`] | [`Quorum`]: how many make a world: pure |
//! | [`retries`] | when to connect again: pure |
//! | [`claim`] | as whom a process comes, and whether it comes again: pure |
//! | `gathering` | the meeting over sockets, from the first connection to the last |
//! | [`latecomers`], [`waiting`] | what those are told that come when the world has been made, and who of them waits for the next one: pure |
//! | `parting` | who is told that there will be no world |
//! | `door` | the same over sockets |
//! | `reception`, `dial`, `conversation` | connections that come, that are made, and the handshake on both |
//! | `strangers` | words to the user about those who were not let in |
//! | `attempt`, `lookup` | one attempt to connect; the addresses of a name |
//!
//! Worker 0 leads, at an address that all know. The others connect to it, in any order and as often as it takes, and say
//! where they listen. When all have come, or [enough](Quorum), it tells them where each is; then worker i connects to each j with
//! 0 < j < i. The connection to the leader becomes the link to it. Until then a worker is called by its *place* in the cluster;
//! those of a world are numbered anew, in the order of their places.

pub mod claim;
pub mod error;
pub mod latecomers;
pub mod listener;
pub mod meeting;
pub mod membership;
pub mod note;
pub mod progress;
pub mod quorum;
pub mod retries;
pub mod waiting;

pub(crate) mod attempt;
mod conversation;
pub(crate) mod dial;
pub(crate) mod door;
mod gathering;
pub(crate) mod lookup;
mod parting;
pub(crate) mod reception;
mod strangers;

pub use claim::Claim;
pub use error::JoinError;
pub use listener::Listener;
pub use progress::{Missing, Progress};
pub use quorum::Quorum;

use crate::handshake::{Hello, Names, Purpose, words};
use crate::identity::{Access, Credentials, Identity, PolicyError, policy};
use crate::mesh::Met;
use crate::shm::SharedMemory;
use crate::{Mesh, Receiver, Settings};
use attempt::Calling;
use distribute_cluster::{Address, Deadline, Task, World, deadline};
use gathering::Gathering;
use listener::OpenError;
use meeting::Meeting;
use membership::Membership;
use reception::Reception;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How a worker joins its world. Made by [`new`](Self::new), set up by the other methods, and ended by
/// [`join`](Self::join).
pub struct Rendezvous {
    world: World,
    addresses: Vec<String>,
    names: Names,
    job: String,
    generation: u64,
    digest: [u8; 32],
    credentials: Credentials,
    timeout: Duration,
    quorum: Quorum,
    settings: Settings,
    shared_memory: SharedMemory,
    listen: Option<String>,
    listener: Option<Listener>,
    progress: Box<dyn FnMut(&Progress) + Send>,
}

impl Rendezvous {
    /// The meeting of the workers of `world`, which are at these addresses, `host:port` each, by number. Port 0 is for any
    /// but worker 0's: it then tells the others its port.
    pub fn new(world: World, addresses: Vec<String>) -> Self {
        Self {
            world,
            addresses,
            names: Names::default(),
            job: "job".to_owned(),
            generation: 0,
            digest: digest(b""),
            credentials: Identity::None.into(),
            timeout: deadline::DEFAULT_TIMEOUT,
            quorum: Quorum::all(world.workers()),
            settings: Settings::default(),
            shared_memory: SharedMemory::default(),
            listen: None,
            listener: None,
            progress: Box::new(|progress| tracing::info!("{progress}")),
        }
    }

    /// What the workers are called where something is said of them, by number: `chief 0`, `worker 0`, … By default each is
    /// called `worker` and its number.
    pub fn tasks(mut self, tasks: Vec<Task>) -> Self {
        self.names = Names::new(tasks);
        self
    }

    /// The name of the job, the same on all workers. Another job that happens to use the same port is refused.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = name.into();
        self
    }

    /// The generation of the world of which this worker was a member last; 0, as it is by default, for a process that has just
    /// started, which knows of none.
    ///
    /// The world that is made is of the [next](Mesh::generation) one: the first of all, or that of workers who meet again after
    /// one was lost. Who says a generation before the leader's is refused, because others have gone on without it.
    pub fn generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    /// What has to be the same on all workers, as bytes: workers with anything else are refused. The numbers of workers and
    /// replicas are compared in any case.
    pub fn agree_on(mut self, bytes: &[u8]) -> Self {
        self.digest = digest(bytes);
        self
    }

    /// What the workers show to be of the job, and how links are protected; by default they show nothing. The name of the job is that
    /// of [`job`](Self::job).
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// How long to wait for the others; a minute by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many workers make a world; all of them, by default. The leader goes by it. Those that come later wait until the world
    /// is made again, and [`Mesh::waiting`] counts them.
    pub fn quorum(mut self, quorum: Quorum) -> Self {
        self.quorum = quorum;
        self
    }

    /// How the links behave.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Whether workers of one machine send each other messages through memory; wherever both can, by default.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Where to listen, `host:port`, if that is not this worker's address among all: `0.0.0.0:2222` in a container.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// A socket that listens already, such as one whose port the system has chosen.
    pub fn listener(mut self, listener: Listener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Calls this once a second while workers are missing.
    pub fn on_progress(mut self, progress: impl FnMut(&Progress) + Send + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Waits until all workers have joined, or [enough](Self::quorum), and are connected to each other. What they send then goes to
    /// `receiver`. [`Mesh::world`] tells how many they are, and which one this is. A cluster of one worker needs no socket.
    ///
    /// # Errors
    /// [`JoinError`]. A worker that is missing at the deadline is named with its address. A worker that has shown that it is of the job,
    /// and disagrees on its name, the cluster or the program, ends the rendezvous of all at once, unless there may be a world without it.
    pub fn join(mut self, receiver: Arc<dyn Receiver>) -> Result<Mesh, JoinError> {
        let world = self.world;
        if !world.is_multi_worker() {
            let generation = self.generation.saturating_add(1);
            let met = Met { generation, ..Met::new(world, Vec::new(), self.settings) };
            return Ok(Mesh::new(met, receiver)?);
        }
        let deadline = Deadline::after(self.timeout);
        let mut addresses = self.check()?;
        let access = self.credentials.access(&addresses)?;
        let listener = match self.listener.take() {
            Some(listener) => {
                let at = listener.address()?;
                if !access.allows(at.ip()) {
                    return Err(PolicyError::PlainTextOnTheNetwork { address: at.to_string() }.into());
                }
                listener
            }
            None => self.bind(&addresses[world.worker()], &access, deadline)?,
        };
        let port = listener.address()?.port();
        let own = &mut addresses[world.worker()];
        if own.port() == 0 {
            *own = Address::new(own.host().clone(), port);
        }
        let hello = Hello {
            job: self.job,
            generation: self.generation,
            rank: world.worker(),
            workers: world.workers(),
            replicas: world.replicas(),
            digest: self.digest,
            purpose: Purpose::Link,
        };
        let shared_memory = self.shared_memory;
        let calling = Calling {
            hello: hello.clone(),
            access: access.clone(),
            names: self.names.clone(),
            shared_memory,
        };
        let members = Membership::new(world.worker(), self.names.clone(), addresses).after(self.generation);
        let gathering = Gathering::new(
            world,
            Meeting::new(world, members).quorum(self.quorum),
            Reception::new(listener, access, hello, shared_memory).named(self.names.clone()),
            calling,
            self.settings,
            self.progress,
        );
        gathering.complete(deadline, receiver)
    }

    /// The addresses, and what can be known to be wrong before any socket is opened.
    fn check(&self) -> Result<Vec<Address>, JoinError> {
        let (given, workers) = (self.addresses.len(), self.world.workers());
        if given != workers {
            return Err(JoinError::Addresses(format!("there are {given} for {workers} workers")));
        }
        let mut addresses = Vec::with_capacity(workers);
        for (worker, text) in self.addresses.iter().enumerate() {
            let wrong = |why| Err(JoinError::Addresses(format!("{text:?} of {} {why}", self.task(worker))));
            if text.len() > words::LONGEST_TEXT {
                return wrong("is too long".to_owned());
            }
            match text.parse::<Address>() {
                Ok(address) if worker == 0 && address.port() == 0 => {
                    return wrong("leaves the port open, and the others have to know it".to_owned());
                }
                Ok(address) => addresses.push(address),
                Err(error) => return wrong(format!("is not host:port: {error}")),
            }
        }
        if self.job.len() > words::LONGEST_TEXT {
            let text = format!("the name of the job is longer than {} bytes", words::LONGEST_TEXT);
            return Err(JoinError::Addresses(text));
        }
        policy::check_hosts(&addresses, |worker| self.task(worker))?;
        Ok(addresses)
    }

    fn task(&self, worker: usize) -> Task {
        self.names.of(worker)
    }

    fn bind(&self, own: &Address, access: &Access, deadline: Deadline) -> Result<Listener, JoinError> {
        let worker = self.world.worker();
        let address = self.listen.clone().unwrap_or_else(|| own.to_string());
        let error =
            |source| JoinError::Bind { worker, task: self.task(worker), address: address.clone(), source };
        let listen: Address = address.parse().map_err(|e| error(io::Error::other(e)))?;
        Listener::open(&listen, access, deadline).map_err(|failed| match failed {
            OpenError::Policy(policy) => policy.into(),
            OpenError::System(source) => error(source),
        })
    }
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendezvous")
            .field("world", &self.world)
            .field("addresses", &self.addresses)
            .field("job", &self.job)
            .field("generation", &self.generation)
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    digest
}
