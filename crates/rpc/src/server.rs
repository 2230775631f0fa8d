//! A task that answers calls.

use crate::connection::{Inbox, Services, serve};
use crate::ending::{End, Ending};
use crate::error::ServerError;
use crate::room::{OpenCalls, Room};
use distribute_cluster::places::{Seats, Source};
use distribute_cluster::{Address, ClusterSpec, Deadline, Stopwatch, Task};
use distribute_log::{Repeats, heard};
use distribute_net::Acceptor;
use distribute_net::endpoint::Arrival;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The maximum wait of the thread that accepts callers between two checks for the server's end.
const LOOK: Duration = Duration::from_millis(200);

/// The interval between two counts of connections for which the system has no thread.
const FAILURES: Duration = Duration::from_secs(10);

/// The time for which the end waits for services that still process a call.
const GRACE: Duration = Duration::from_secs(10);

/// A task of a cluster that answers calls of other tasks.
///
/// It listens from its creation on, and answers from [`start`](Self::start) on. Dropping it closes its
/// connections gracefully: answers that were given still arrive.
#[doc(alias = "tf.distribute.Server")]
#[doc(alias = "tf.train.Server")]
#[derive(Debug)]
pub struct Server {
    task: Task,
    cluster: Arc<ClusterSpec>,
    address: Address,
    protocol: String,
    ending: Arc<Ending>,
    /// `Some` until it is started.
    ready: Option<Ready>,
    thread: Option<JoinHandle<()>>,
}

/// The state of a server that has not been started.
pub(crate) struct Ready {
    pub acceptor: Acceptor,
    pub services: Services,
    /// The maximum number of connections.
    pub connections: usize,
    /// The maximum number of calls of each connection without an answer.
    pub calls: usize,
    /// The room of all calls without an answer.
    pub room: Arc<Room>,
    /// The time without a task of another job after which the server ends.
    pub lease: Duration,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.services.keys()).finish()
    }
}

/// A handle that ends a server, or waits for its end, on any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    task: Task,
    address: String,
    ending: Arc<Ending>,
}

impl Server {
    pub(crate) fn ready(
        task: Task,
        cluster: Arc<ClusterSpec>,
        address: Address,
        protocol: String,
        ending: Arc<Ending>,
        ready: Ready,
    ) -> Self {
        Self { task, cluster, address, protocol, ending, ready: Some(ready), thread: None }
    }

    /// Starts to answer. Does nothing if it was already started.
    ///
    /// # Errors
    /// [`ServerError::Thread`] if the system cannot start a thread.
    pub fn start(&mut self) -> Result<(), ServerError> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        let (me, ending) = (Arc::new(self.task.clone()), self.ending.clone());
        let thread = Builder::new().name("distribute-rpc".to_owned());
        let started = thread.spawn(move || accept(ready, &me, &ending));
        let started = started.map_err(|source| ServerError::Thread { task: self.task.clone(), source });
        self.thread = Some(started?);
        Ok(())
    }

    /// Returns the target for callers, such as `tcp://10.0.0.7:2222`.
    pub fn target(&self) -> String {
        format!("{}://{}", self.protocol, self.address)
    }

    /// Returns the address, with the port that the system has chosen if the cluster's address has port 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the task of this server.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Returns the cluster of this server, with its actual port.
    #[doc(alias = "server_def")]
    pub fn cluster(&self) -> &ClusterSpec {
        &self.cluster
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.ending.connections()
    }

    /// Waits until the server has ended, by the chief or by [`stop`](Self::stop), without a time limit.
    ///
    /// # Errors
    /// [`ServerError::Broken`] if the server failed.
    pub fn join(&self) -> Result<End, ServerError> {
        self.stopper().join()
    }

    /// Equivalent to [`join`](Self::join), for at most `timeout`. Returns `None` if the server has not ended
    /// by then.
    ///
    /// # Errors
    /// [`ServerError::Broken`] if the server failed.
    pub fn join_timeout(&self, timeout: Duration) -> Result<Option<End>, ServerError> {
        self.stopper().join_timeout(timeout)
    }

    /// Ends the server. Later calls are not answered.
    pub fn stop(&self) {
        self.ending.end(End::Stopped);
    }

    /// Returns a handle that ends this server, or waits for its end, on another thread.
    pub fn stopper(&self) -> Stopper {
        let address = self.address.to_string();
        Stopper { task: self.task.clone(), address, ending: self.ending.clone() }
    }
}

impl Stopper {
    /// Ends the server: see [`Server::stop`].
    pub fn stop(&self) {
        self.ending.end(End::Stopped);
    }

    /// Waits until the server has ended: see [`Server::join`]. Dropping the server also ends it.
    ///
    /// # Errors
    /// [`ServerError::Broken`] if the server failed.
    pub fn join(&self) -> Result<End, ServerError> {
        loop {
            // Dropping the server ends this loop.
            if let Some(end) = self.join_timeout(Duration::MAX)? {
                return Ok(end);
            }
        }
    }

    /// Waits for at most `timeout`: see [`Server::join_timeout`].
    ///
    /// # Errors
    /// [`ServerError::Broken`] if the server failed.
    pub fn join_timeout(&self, timeout: Duration) -> Result<Option<End>, ServerError> {
        match self.ending.wait(timeout) {
            Some(End::Broken(reason)) => {
                let (task, address) = (self.task.clone(), self.address.clone());
                Err(ServerError::Broken { task, address, reason })
            }
            end => Ok(end),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.end(End::Dropped);
        if let Some(thread) = self.thread.take() {
            // The thread checks whether the server has ended, and runs no service.
            let _ = thread.join();
        }
        if !self.ending.wait_for_connections(GRACE) {
            heard(|| {
                let (task, seconds) = (&self.task, GRACE.as_secs());
                tracing::warn!("the server of {task} is over, and a call of it is not after {seconds} s");
            });
        }
    }
}

/// Accepts callers until the server ends.
fn accept(mut ready: Ready, me: &Arc<Task>, ending: &Arc<Ending>) {
    let services = Arc::new(std::mem::take(&mut ready.services));
    let mut lease = Deadline::after(ready.lease);
    let (mut failures, began) = (Repeats::new(FAILURES), Stopwatch::start());
    while !ending.has_ended() {
        let slice = lease.look();
        if slice.is_zero() {
            ending.end(End::Left(ready.lease));
            continue;
        }
        let mut seats = None;
        let arrived = ready.acceptor.accept_if(LOOK.min(slice), &mut |caller, from| {
            let seats = seats.get_or_insert_with(|| Seats::new(ready.connections, ending.sources()));
            seats.take(Source::new(from).task(caller.clone()))
        });
        lease.look();
        for ((), count) in failures.due(began.elapsed()) {
            let seconds = FAILURES.as_secs();
            heard(|| tracing::warn!("{me} could not serve {count} more connections within {seconds} s"));
        }
        if ending.is_kept() {
            lease = Deadline::after(ready.lease);
        }
        match arrived {
            Ok(arrivals) => {
                for arrival in arrivals {
                    let caller = arrival.caller().clone();
                    if let Err(error) = connect(arrival, &ready, me, &services, ending)
                        && failures.come((), began.elapsed())
                    {
                        heard(|| tracing::warn!("{me} cannot serve {caller}: {error}"));
                    }
                }
            }
            Err(error) => ending.end(End::Broken(error.to_string())),
        }
    }
}

/// Opens a connection, and answers its calls on a thread.
fn connect(
    arrival: Arrival,
    ready: &Ready,
    me: &Arc<Task>,
    services: &Arc<Services>,
    ending: &Arc<Ending>,
) -> std::io::Result<()> {
    let inbox = Inbox::new(OpenCalls::new(ready.room.clone(), ready.calls));
    let source = Source::new(arrival.from().ip()).task(arrival.caller().clone());
    let endpoint = Arc::new(arrival.open(inbox.clone())?);
    let (me, services, ending) = (me.clone(), services.clone(), ending.clone());
    ending.enter(&inbox, source, endpoint.peer().job != me.job);
    let (entered, owner) = (inbox.clone(), ending.clone());
    let thread = Builder::new().name("distribute-calls".to_owned());
    let started = thread.spawn(move || {
        serve(&endpoint, &inbox, &me, &services);
        // Given answers still arrive, and a thread that waits for the end finds that the services were
        // dropped.
        drop(endpoint);
        drop(services);
        ending.leave(&inbox);
    });
    started.map(drop).inspect_err(|_| owner.leave(&entered))
}
