//! The rendezvous of a world's workers.
//!
//! | module | contents |
//! |---|---|
//! | [`listener`] | [`Listener`]: the socket at which a worker is reached |
//! | [`membership`] | the workers that have connected, may connect, and are missing: pure |
//! | [`progress`] | [`Progress`]: the progress of a rendezvous |
//! | [`note`] | messages of the leader to workers that have joined |
//! | [`error`] | [`JoinError`] |
//! | [`state`] | `RendezvousState`: a worker's decisions about incoming and outgoing connections: pure |
//! | [`quorum`] | [`Quorum`]: the number of workers that make a world: pure |
//! | [`retries`] | the times of further attempts to connect: pure |
//! | [`election`] | who leads, if the first worker need not: pure |
//! | [`memory`] | [`Memory`]: what a process has learned in its rendezvous |
//! | [`claim`] | the claim of a process in a rendezvous, and whether it may retry: pure |
//! | `running` | the rendezvous over sockets, from the first connection to the last |
//! | [`late_join_replies`], [`waiting`] | replies to latecomers, and the record of those that wait for the next world: pure |
//! | `spare_links` | the connections to spares, which the leader of a complete world holds |
//! | `refusal_broadcast` | the notification that there will be no world |
//! | `late_join_listener` | the listener for processes that connect after the world is complete |
//! | `reception`, `dialer`, `handshake_stream` | incoming connections, outgoing connections, and the handshake on both |
//! | `refused_connections` | log messages about refused connections |
//! | `attempt`, `lookup` | one attempt to connect, and the addresses of a host name |
//!
//! Worker 0 is the leader, at an address that all workers know. The other workers connect to it, in any order and with
//! retries, and send the address at which they listen. When all workers have connected, or [a quorum](Quorum) of them,
//! the leader sends them the addresses. Then worker i connects to each worker j with 0 < j < i. The connection to the
//! leader becomes the link to it.
//!
//! With a fixed number of workers and spares, the leader is [elected](Rendezvous::elect), so that the others do not
//! need the first worker. Then any process can be asked, and names the leader.
//!
//! A world may have a [maximum number](Quorum::maximum) of workers. The leader accepts other processes as *spares*, and
//! holds their connections. When the group re-forms, spares take the positions of lost workers.
//!
//! Before a world is formed, a worker is identified by its *position* in the cluster. The workers of a world are then
//! numbered by rank, in the order of their positions.

// - **INV-85** A worker of the job that disagrees on its name, the cluster or the program ends the rendezvous of
//   all workers at once, if it is needed: the leader names it to all. It has proved the secret before, or has a
//   certificate, or, if there is neither, is a process of the same user that has the job's name. A stranger ends
//   nothing; its address and the reason are in the error at the deadline. Tests: `net/src/identity/access.rs`,
//   `net/tests/it/refusals.rs`, `net/src/rendezvous/state/tests.rs`.
// - INV-28: there are at most 64 strangers at once, for 5 s each, for which no thread waits. Tests:
//   `net/tests/it/refusals.rs`.

pub mod claim;
pub mod election;
pub mod error;
pub mod late_join_replies;
pub mod listener;
pub mod membership;
pub mod memory;
pub mod note;
pub mod progress;
pub mod quorum;
pub mod retries;
pub mod state;
pub mod waiting;

pub(crate) mod attempt;
pub(crate) mod dialer;
mod handshake_stream;
pub(crate) mod late_join_listener;
pub(crate) mod lookup;
pub(crate) mod reception;
mod refusal_broadcast;
mod refused_connections;
mod running;
mod spare_links;

pub use claim::Claim;
pub use error::JoinError;
pub use listener::Listener;
pub use memory::Memory;
pub use progress::{Missing, Progress};
pub use quorum::{KnownWorkers, Quorum};

use crate::handshake::{Hello, Names, Purpose, words};
use crate::identity::{Access, Credentials, Identity, PolicyError, policy, secret};
use crate::mesh::RendezvousResult;
use crate::shm::SharedMemory;
use crate::{Mesh, Receiver, Settings};
use attempt::CallContext;
use distribute_cluster::{Address, Deadline, ReplicaCount, Task, World, deadline};
use election::{Election, Electorate};
use listener::OpenError;
use membership::Membership;
use reception::Reception;
use running::RunningRendezvous;
use state::RendezvousState;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A rendezvous of one worker with the others of its world: they find each other and connect. Create it with
/// [`new`](Self::new), and run it with [`join`](Self::join).
#[must_use = "a rendezvous does nothing until `join` is called"]
pub struct Rendezvous {
    world: World,
    addresses: Vec<String>,
    names: Names,
    job: String,
    generation: u64,
    spare_of: u64,
    returns_spare: bool,
    digest: [u8; 32],
    credentials: Credentials,
    timeout: Duration,
    quorum: Quorum,
    memory: Option<Memory>,
    settings: Settings,
    shared_memory: SharedMemory,
    listen: Option<String>,
    listener: Option<Listener>,
    progress: Box<dyn FnMut(&Progress) + Send>,
}

impl Rendezvous {
    /// Creates a rendezvous for the workers of `world`, with the address of each worker, `host:port`, by rank. The port
    /// of any worker except worker 0 can be 0; the worker then sends its actual port to the others.
    pub fn new(world: World, addresses: Vec<String>) -> Self {
        Self {
            world,
            addresses,
            names: Names::default(),
            job: "job".to_owned(),
            generation: 0,
            spare_of: 0,
            returns_spare: false,
            digest: digest(b""),
            credentials: Identity::None.into(),
            timeout: deadline::DEFAULT_TIMEOUT,
            quorum: Quorum::all(world.workers()),
            memory: None,
            settings: Settings::default(),
            shared_memory: SharedMemory::default(),
            listen: None,
            listener: None,
            progress: Box::new(|progress| tracing::info!("{progress}")),
        }
    }

    /// Sets the tasks of the workers by rank, by which messages name the workers: `chief 0`, `worker 0`, … By default
    /// each is named `worker`, followed by its rank.
    pub fn tasks(mut self, tasks: Vec<Task>) -> Self {
        self.names = Names::new(tasks);
        self
    }

    /// Sets the name of the job, which must be the same on all workers. A process of a different job that uses the same
    /// port by chance is rejected.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = name.into();
        self
    }

    /// Sets the generation of the last world of which this worker was a member. The default is 0, for a process that
    /// has just started.
    ///
    /// The new world has the [next](Mesh::generation) generation. If it is not the first world, its workers form a
    /// group again, for example after a failure. A worker whose last world is earlier than that of the leader is
    /// rejected, because the others have continued without it. A process that has just started can join any world.
    pub fn generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    /// Makes this process a spare of the world of the given generation. The default is 0, for no spare.
    ///
    /// With [elections](Self::elect), a later world of the `memory` takes precedence.
    ///
    /// A spare waits as long as the job lasts: [`join`](Self::join) returns when a world needs it. The
    /// [timeout](Self::timeout) only applies while the leader cannot be reached.
    pub fn spare_of(mut self, generation: u64) -> Self {
        self.spare_of = generation;
        self
    }

    /// Sets whether [`join`](Self::join) returns [`JoinError::Spare`] if a world is complete without this process. By
    /// default `join` waits until a world needs this process.
    pub fn returns_spare(mut self, returns: bool) -> Self {
        self.returns_spare = returns;
        self
    }

    /// Sets bytes that must be the same on all workers. Workers with different bytes are rejected. The numbers of
    /// workers and replicas are always compared.
    pub fn agree_on(mut self, bytes: &[u8]) -> Self {
        self.digest = digest(bytes);
        self
    }

    /// Sets the credentials of the workers and the protection of links. By default there are no credentials. The name
    /// of the job in the credentials is ignored; it is set by [`job`](Self::job).
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Sets the maximum time to wait for the other workers. The default is one minute.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of workers that form a world. The default is all workers. Only the leader uses this setting.
    /// Workers that connect later wait for the next rendezvous, and [`Mesh::waiting`] counts them unless they are
    /// spares.
    pub fn quorum(mut self, quorum: Quorum) -> Self {
        self.quorum = quorum;
        self
    }

    /// Elects the leader of the world. By default, worker 0 leads.
    ///
    /// Every process asks all addresses that it knows: those of the cluster, and those in `memory`, to which it adds
    /// the addresses that it learns. It needs one that answers. The port of any worker may be 0, but a process that is
    /// started again only finds the others if it knows the address of one that is running.
    ///
    /// There are no two worlds, because the [minimum](Quorum::minimum) is at least
    /// [`Electorate::needed`](election::Electorate::needed). All workers must use this setting, or none.
    pub fn elect(mut self, memory: Memory) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Sets the options of the links.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets whether workers of one machine send messages through shared memory. By default they do if both support it.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Sets the address at which to listen, in the form `host:port`, if it differs from this worker's address in the
    /// list. An example is `0.0.0.0:2222` in a container.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Sets a socket that is already listening, for example a socket whose port was chosen by the system.
    pub fn listener(mut self, listener: Listener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Sets a function that is called once a second while workers are missing. By default, the progress is logged.
    pub fn on_progress(mut self, progress: impl FnMut(&Progress) + Send + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Waits until all workers, or [a quorum](Self::quorum) of them, have joined and are connected to each other.
    /// Returns the mesh, which delivers their messages to `receiver`. [`Mesh::world`] returns the number of workers and
    /// the rank of this one. A cluster of one worker needs no socket.
    ///
    /// If a worker of the same job disagrees on the name of the job, the cluster or the program, the rendezvous fails
    /// immediately on all workers, unless a world can be formed without it.
    ///
    /// # Errors
    /// - [`JoinError::Addresses`]: the number or the form of the addresses is wrong, or the name of the job
    ///   is too long.
    /// - [`JoinError::Policy`]: links would be unprotected, or unreachable.
    /// - [`JoinError::Identity`]: the secret or the certificates cannot be used.
    /// - [`JoinError::Bind`]: this worker cannot listen at its address.
    /// - [`JoinError::Refused`]: a worker rejects this one, or this one does not trust it.
    /// - [`JoinError::OtherRefused`]: another worker was rejected, and a world cannot be formed without it.
    /// - [`JoinError::Leader`]: the leader has sent a message that no leader of this version sends.
    /// - [`JoinError::Spare`]: a world is complete without this process, and the rendezvous [returns
    ///   spares](Self::returns_spare).
    /// - [`JoinError::Lost`]: a worker was disconnected before all had connected to each other.
    /// - [`JoinError::Deadline`]: workers are missing at the deadline. The error lists them with their
    ///   addresses.
    /// - [`JoinError::World`]: the numbers of workers and replicas do not describe a valid world.
    /// - [`JoinError::System`]: a socket cannot be opened, or a thread cannot be started.
    pub fn join(mut self, receiver: Arc<dyn Receiver>) -> Result<Mesh, JoinError> {
        let world = self.world;
        if !world.is_multi_worker() {
            let generation = self.generation.saturating_add(1);
            let met =
                RendezvousResult { generation, ..RendezvousResult::new(world, Vec::new(), self.settings) };
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
        let configured = addresses.clone();
        let port = listener.address()?.port();
        let own = &mut addresses[world.worker()];
        if own.port() == 0 {
            *own = Address::new(own.host().clone(), port);
        }
        let hello = Hello {
            job: self.job,
            generation: self.generation,
            table: 0,
            rank: world.worker(),
            workers: world.workers(),
            replicas: match world.count() {
                ReplicaCount::PerWorker(replicas) | ReplicaCount::Total(replicas) => replicas,
            },
            digest: self.digest,
            purpose: Purpose::Link,
        };
        let shared_memory = self.shared_memory;
        let context = CallContext {
            hello: hello.clone(),
            access: access.clone(),
            names: self.names.clone(),
            shared_memory,
        };
        let own = (world.worker(), addresses[world.worker()].clone());
        let table = secret::random()?.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte));
        let members = Membership::new(world.worker(), self.names.clone(), addresses);
        let members = members.after(self.generation).table_id(table);
        let present = self.quorum.present.clone();
        let electorate = Electorate::new(world.workers(), self.quorum.maximum);
        if self.memory.is_some() {
            self.quorum.minimum = self.quorum.minimum.max(electorate.needed());
        }
        // In an earlier attempt, the process may have been told of a later world.
        let told = self.memory.as_ref().and_then(Memory::spare_of).filter(|_| self.spare_of > 0);
        let (spare_of, spare_table) = told.unwrap_or((self.spare_of, 0));
        // Spares wait for a leader from the time at which the last one was lost.
        let mut state = RendezvousState::new(world, members)
            .quorum(self.quorum)
            .patience(self.timeout / 2)
            .spare_of(spare_of, spare_table);
        if let Some(memory) = &self.memory {
            let learned = memory.addresses();
            let likely: BTreeSet<_> = match self.spare_of {
                0 => present.first().copied().into_iter().collect(),
                _ => learned.keys().copied().collect(),
            };
            let election = Election::new(world.worker(), configured, learned);
            state = state.after_unformed(memory.unformed()).after_apart(memory.apart());
            state = state.elect(if likely.is_empty() { election } else { election.with_likely(likely) });
            memory.add([own]);
        }
        let running = RunningRendezvous::new(
            world,
            state,
            Reception::new(listener, access, hello, shared_memory).named(self.names.clone()),
            context,
            self.settings,
            self.progress,
        );
        let running = match self.memory {
            Some(memory) => running.elect(electorate, memory),
            None => running,
        };
        running.returns_spare(self.returns_spare).complete(deadline, receiver)
    }

    /// Parses and checks the addresses and the name of the job, so that mistakes are found before a socket is opened.
    fn check(&self) -> Result<Vec<Address>, JoinError> {
        let (given, workers) = (self.addresses.len(), self.world.workers());
        if given != workers {
            return Err(JoinError::Addresses(format!("there are {given} for {workers} workers")));
        }
        let mut addresses = Vec::with_capacity(workers);
        for (worker, text) in self.addresses.iter().enumerate() {
            let wrong = |why| Err(JoinError::Addresses(format!("{text:?} of {} {why}", self.task(worker))));
            if text.len() > words::MAX_TEXT {
                return wrong("is too long".to_owned());
            }
            match text.parse::<Address>() {
                Ok(address) if worker == 0 && address.port() == 0 => {
                    return wrong("has no port, and the others need it".to_owned());
                }
                Ok(address) => addresses.push(address),
                Err(error) => return wrong(format!("is not host:port: {error}")),
            }
        }
        if self.job.len() > words::MAX_TEXT {
            let text = format!("the name of the job is longer than {} bytes", words::MAX_TEXT);
            return Err(JoinError::Addresses(text));
        }
        policy::check_hosts(&addresses, |worker| self.task(worker))?;
        Ok(addresses)
    }

    fn task(&self, worker: usize) -> Task {
        self.names.task(worker)
    }

    fn bind(&self, own: &Address, access: &Access, deadline: Deadline) -> Result<Listener, JoinError> {
        let worker = self.world.worker();
        if let (Some(memory), None, 0) = (&self.memory, &self.listen, own.port()) {
            // Others know the port at which this process has listened before.
            let before = memory.addresses().remove(&worker);
            if let Some(Ok(listener)) = before.map(|before| Listener::open(&before, access, deadline)) {
                return Ok(listener);
            }
        }
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
