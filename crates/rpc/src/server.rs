//! [`Server`]: a task that answers calls.

use crate::connection::{Inbox, Services, serve};
use crate::error::ServerError;
use crate::memory_budget::{MemoryBudget, OpenCalls};
use crate::shutdown::{Shutdown, ShutdownReason};
use distribute_cluster::admission::{Seats, Source};
use distribute_cluster::{Address, ClusterSpec, Deadline, Stopwatch, Task};
use distribute_log::{Repeats, warn_or_stderr};
use distribute_net::Acceptor;
use distribute_net::endpoint::IncomingConnection;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The maximum interval at which the thread that accepts callers checks whether the server has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The interval between two log messages that count connection failures of one kind.
const FAILURE_COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// The maximum time for which an ending server waits for services that still process a call.
const GRACE: Duration = Duration::from_secs(10);

/// A task of a cluster that answers calls of other tasks.
///
/// A server listens as soon as it is created, and answers calls once it is [started](Self::start). Dropping it closes
/// its connections gracefully: answers that were already sent still arrive. The drop waits up to ten seconds for
/// services that still process a call.
#[doc(alias = "tf.distribute.Server")]
#[doc(alias = "tf.train.Server")]
#[derive(Debug)]
pub struct Server {
    task: Task,
    cluster: Arc<ClusterSpec>,
    address: Address,
    protocol: String,
    shutdown: Arc<Shutdown>,
    /// The state for starting the server; `None` once it has started.
    ready: Option<Ready>,
    thread: Option<JoinHandle<()>>,
}

/// The state of a server that has not been started.
pub(crate) struct Ready {
    pub acceptor: Acceptor,
    pub services: Services,
    /// The maximum number of connections.
    pub connections: usize,
    /// The maximum number of unanswered calls of each connection.
    pub calls: usize,
    /// The memory budget for all unanswered calls.
    pub budget: Arc<MemoryBudget>,
    /// The time after which the server ends if no task of a different job is connected.
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
    shutdown: Arc<Shutdown>,
}

impl Server {
    pub(crate) fn ready(
        task: Task,
        cluster: Arc<ClusterSpec>,
        address: Address,
        protocol: String,
        shutdown: Arc<Shutdown>,
        ready: Ready,
    ) -> Self {
        Self { task, cluster, address, protocol, shutdown, ready: Some(ready), thread: None }
    }

    /// Starts to answer calls. Does nothing if the server was already started.
    ///
    /// # Errors
    /// - [`ServerError::Thread`]: the system cannot start a thread. This method can then be called again.
    pub fn start(&mut self) -> Result<(), ServerError> {
        self.start_on(Builder::new().name("distribute-rpc".to_owned()))
    }

    /// Starts to answer calls on a thread of `builder`: see [`start`](Self::start).
    fn start_on(&mut self, builder: Builder) -> Result<(), ServerError> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        let (me, shutdown) = (Arc::new(self.task.clone()), self.shutdown.clone());
        // A closure that was not started is dropped, and must not drop the listening socket.
        let slot = Arc::new(Mutex::new(Some(ready)));
        let theirs = slot.clone();
        let started = builder.spawn(move || {
            let ready = theirs.lock().take();
            if let Some(ready) = ready {
                accept(ready, &me, &shutdown);
            }
        });
        match started {
            Ok(thread) => self.thread = Some(thread),
            Err(source) => {
                self.ready = slot.lock().take();
                return Err(ServerError::Thread { task: self.task.clone(), source });
            }
        }
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

    /// Returns the cluster of this server, with the server's actual port.
    #[doc(alias = "server_def")]
    pub fn cluster(&self) -> &ClusterSpec {
        &self.cluster
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shutdown.connections()
    }

    /// Waits, without a time limit, until the server has ended, and returns the cause: see [`ShutdownReason`].
    ///
    /// # Errors
    /// - [`ServerError::Broken`]: the server failed.
    pub fn join(&self) -> Result<ShutdownReason, ServerError> {
        self.stopper().join()
    }

    /// Equivalent to [`join`](Self::join), but waits for at most `timeout`. Returns `None` if the server has not ended
    /// by then.
    ///
    /// # Errors
    /// - [`ServerError::Broken`]: the server failed.
    pub fn join_timeout(&self, timeout: Duration) -> Result<Option<ShutdownReason>, ServerError> {
        self.stopper().join_timeout(timeout)
    }

    /// Waits until all connections are closed. Returns `false` if some are still open after `timeout`.
    pub fn wait_for_disconnection(&self, timeout: Duration) -> bool {
        self.shutdown.wait_for_connections(timeout)
    }

    /// Ends the server. Calls that no service has begun to process are not answered.
    pub fn stop(&self) {
        self.shutdown.end(ShutdownReason::Stopped);
    }

    /// Returns a handle that ends this server, or waits for its end, on another thread.
    pub fn stopper(&self) -> Stopper {
        let address = self.address.to_string();
        Stopper { task: self.task.clone(), address, shutdown: self.shutdown.clone() }
    }
}

impl Stopper {
    /// Ends the server: see [`Server::stop`].
    pub fn stop(&self) {
        self.shutdown.end(ShutdownReason::Stopped);
    }

    /// Waits until the server has ended: see [`Server::join`]. Dropping the server also ends it.
    ///
    /// # Errors
    /// - [`ServerError::Broken`]: the server failed.
    pub fn join(&self) -> Result<ShutdownReason, ServerError> {
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
    /// - [`ServerError::Broken`]: the server failed.
    pub fn join_timeout(&self, timeout: Duration) -> Result<Option<ShutdownReason>, ServerError> {
        match self.shutdown.wait(timeout) {
            Some(ShutdownReason::Broken(reason)) => {
                let (task, address) = (self.task.clone(), self.address.clone());
                Err(ServerError::Broken { task, address, reason })
            }
            end => Ok(end),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.end(ShutdownReason::Dropped);
        if let Some(thread) = self.thread.take() {
            // The thread checks whether the server has ended, and runs no service.
            let _ = thread.join();
        }
        if !self.shutdown.wait_for_connections(GRACE) {
            warn_or_stderr(|| {
                let (task, seconds) = (&self.task, GRACE.as_secs());
                tracing::warn!(
                    "the server of {task} has stopped, but a call was still running after {seconds} s"
                );
            });
        }
    }
}

/// A kind of connection failure that is logged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    /// No thread or socket could be created for a connection.
    NotServed,
    /// The caller did not follow the protocol.
    Violation,
}

/// Accepts callers until the server ends. Ends the server if its lease expires, or if callers can no longer be
/// accepted.
fn accept(mut ready: Ready, me: &Arc<Task>, shutdown: &Arc<Shutdown>) {
    let services = Arc::new(std::mem::take(&mut ready.services));
    let mut lease = Deadline::after(ready.lease);
    let (mut failures, began) = (Repeats::new(FAILURE_COUNT_INTERVAL), Stopwatch::start());
    while !shutdown.has_ended() {
        let slice = lease.look();
        if slice.is_zero() {
            shutdown.end(ShutdownReason::Left(ready.lease));
            continue;
        }
        let mut seats = None;
        let arrived = ready.acceptor.accept_if(CHECK_INTERVAL.min(slice), &mut |caller, from| {
            let seats = seats.get_or_insert_with(|| Seats::new(ready.connections, shutdown.sources()));
            seats.take(Source::new(from).task(caller.clone()))
        });
        lease.look();
        for violation in shutdown.take_violations() {
            if failures.record(Failure::Violation, began.elapsed()) {
                warn_or_stderr(|| tracing::warn!("{violation}"));
            }
        }
        for (kind, count) in failures.due(began.elapsed()) {
            let seconds = FAILURE_COUNT_INTERVAL.as_secs();
            warn_or_stderr(|| match kind {
                Failure::NotServed => {
                    tracing::warn!("{me} could not serve {count} more connections within {seconds} s");
                }
                Failure::Violation => tracing::warn!(
                    "{me} has closed {count} more connections within {seconds} s, whose callers do not follow the \
                     protocol"
                ),
            });
        }
        if shutdown.is_leased() {
            lease = Deadline::after(ready.lease);
        }
        match arrived {
            Ok(arrivals) => {
                for arrival in arrivals {
                    let caller = arrival.caller().clone();
                    if let Err(error) = connect(arrival, &ready, me, &services, shutdown)
                        && failures.record(Failure::NotServed, began.elapsed())
                    {
                        warn_or_stderr(|| tracing::warn!("{me} cannot serve {caller}: {error}"));
                    }
                }
            }
            Err(error) => shutdown.end(ShutdownReason::Broken(error.to_string())),
        }
    }
}

/// Opens an accepted connection, and answers its calls on a new thread.
fn connect(
    arrival: IncomingConnection,
    ready: &Ready,
    me: &Arc<Task>,
    services: &Arc<Services>,
    shutdown: &Arc<Shutdown>,
) -> std::io::Result<()> {
    let inbox = Inbox::new(OpenCalls::new(ready.budget.clone(), ready.calls));
    let source = Source::new(arrival.from().ip()).task(arrival.caller().clone());
    let endpoint = Arc::new(arrival.open(inbox.clone())?);
    let (me, services, shutdown) = (me.clone(), services.clone(), shutdown.clone());
    shutdown.enter(&inbox, source, endpoint.peer().job != me.job);
    let (entered, owner) = (inbox.clone(), shutdown.clone());
    let thread = Builder::new().name("distribute-calls".to_owned());
    let started = thread.spawn(move || {
        let violation = serve(&endpoint, &inbox, &me, &services);
        // Answers that services have given still arrive, and a thread that waits for the end finds that the
        // services were dropped.
        drop(endpoint);
        drop(services);
        shutdown.leave(&inbox, violation);
    });
    started.map(drop).inspect_err(|_| owner.leave(&entered, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientBuilder;
    use distribute_cluster::Job;
    use distribute_net::{Identity, Message};
    use distribute_testing::watched;

    #[test]
    fn a_server_whose_thread_cannot_be_started_answers_after_the_next_start() {
        watched(|| {
            let cluster = ClusterSpec::from_lists([("ps", ["127.0.0.1:0"])]).unwrap();
            let builder = Server::builder(cluster).task(Job::Ps.task(0)).credentials(Identity::None);
            let mut server = builder.build().unwrap();
            // No system has that much memory for a stack.
            for _ in 0..2 {
                let error = server.start_on(Builder::new().stack_size(1 << 60)).unwrap_err();
                assert!(matches!(error, ServerError::Thread { .. }), "{error}");
            }
            server.start().unwrap();
            server.start().unwrap();
            let clients = ClientBuilder::new(server.cluster().clone(), Job::Chief.task(0));
            let client = clients.credentials(Identity::None).connect(server.task(), GRACE).unwrap();
            client.call("doctor", Message::default(), GRACE).unwrap();
        });
    }
}
