//! The thread that sends a server's changes to its follower.

use super::message::{FollowerRequest, FollowerResponse};
use super::replication_plan::{FollowerLink, ReplicationPlan};
use crate::REPLICAS;
use crate::store::{Core, Follower, listed};
use distribute_cluster::{Stopwatch, Task};
use distribute_log::{info_or_stderr, warn_or_stderr};
use distribute_rpc::{Client, ClientBuilder};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The timeout for one response of the follower. A request may contain a large table.
const ANSWER: Duration = Duration::from_secs(60);

/// The timeout of one attempt to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// The pause between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(20);

/// The interval at which the thread checks whether the follower has restarted, which the connection may not show.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A thread that sends changes to the follower, until it is dropped.
#[derive(Debug)]
pub(crate) struct ChangeSender {
    follower: Arc<Follower>,
    to: Task,
    number: u64,
    thread: Option<JoinHandle<()>>,
}

impl ChangeSender {
    pub fn start(core: &Arc<Core>, (clients, to, number): (ClientBuilder, Task, u64)) -> io::Result<Self> {
        let follower = Arc::<Follower>::default();
        core.follow(follower.clone());
        let sender =
            SenderThread { core: core.clone(), follower: follower.clone(), clients, to: to.clone(), number };
        let thread = Builder::new().name("distribute-follower".to_owned()).spawn(move || sender.run())?;
        Ok(Self { follower, to, number, thread: Some(thread) })
    }
}

impl ChangeSender {
    /// Records that task `by` has requested the copy that it keeps of server `number`, and returns `true`. `run` is the
    /// random number of the task's process. If `by` is not this server's follower, or `number` is not this server's,
    /// does nothing and returns `false`.
    pub fn asked(&self, (by, number): (&Task, u64), run: u64) -> bool {
        let follows = *by == self.to && number == self.number;
        if follows {
            self.follower.update(|state| state.asked = Some(run));
        }
        follows
    }
}

impl Drop for ChangeSender {
    fn drop(&mut self) {
        self.follower.end();
        // This waits for one response at most.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct SenderThread {
    core: Arc<Core>,
    follower: Arc<Follower>,
    clients: ClientBuilder,
    to: Task,
    number: u64,
}

impl SenderThread {
    fn run(&self) {
        let mut replication_plan = ReplicationPlan::new(self.to.to_string(), self.number);
        let mut alone: Option<Stopwatch> = None;
        while !self.follower.lock().over {
            let mut connection = FollowerConnection { client: None, core: &self.core, held: Vec::new() };
            let connected = self.clients.connect(&self.to, CONNECT).map_err(|error| error.to_string());
            let Err(reason) = connected.and_then(|client| {
                let (number, follower) = (self.follower.connected(), self.follower.clone());
                client.on_loss(move |reason| follower.disconnected(number, reason));
                connection.client = Some(client);
                self.connected(&mut replication_plan, &mut connection, &mut alone)
            }) else {
                return;
            };
            replication_plan.restart(&self.follower, &mut connection);
            let names = if self.follower.lock().life > 0 { self.core.names() } else { Vec::new() };
            // There is no warning for a server that has just started, or is coming back.
            if alone.is_none() && !names.is_empty() {
                warn_or_stderr(|| {
                    tracing::warn!(
                        "{}, the follower of this server, is not available: until it has a copy again, \
                         these tables exist only on this server, and changes wait: {}; {reason}",
                        self.to,
                        listed(&names)
                    );
                });
                alone = Some(Stopwatch::start());
            }
            self.follower.update(|state| state.last_error = Some(reason));
            if self.follower.pause(AGAIN) {
                return;
            }
        }
    }

    /// Sends requests over one connection. Returns `Ok` when the server stops.
    ///
    /// # Errors
    /// Returns the reason if the connection is lost, or if the follower has restarted or has not executed a request.
    fn connected(
        &self,
        replication_plan: &mut ReplicationPlan,
        connection: &mut FollowerConnection<'_>,
        alone: &mut Option<Stopwatch>,
    ) -> Result<(), String> {
        loop {
            let idle = !replication_plan.step(&self.core, &self.follower, connection)?;
            let is_copied = {
                let state = self.follower.lock();
                if state.over {
                    return Ok(());
                }
                state.is_copied
            };
            if is_copied && let Some(since) = alone.take() {
                self.follower.update(|state| state.last_error = None);
                let count = self.core.names().len();
                info_or_stderr(|| {
                    tracing::info!(
                        "{} has a copy of all {count} tables again, after {:.1} s",
                        self.to,
                        since.seconds()
                    );
                });
            }
            if replication_plan.is_old(&self.follower) {
                return Err("it has started again".to_owned());
            }
            if idle {
                let lost = self.follower.await_changes(CHECK_INTERVAL).lost.clone();
                lost.map_or(Ok(()), Err)?;
            }
        }
    }
}

/// A connection to the follower, and the locks that block changes during a transfer.
struct FollowerConnection<'a> {
    client: Option<Client>,
    core: &'a Core,
    held: Vec<MutexGuard<'a, ()>>,
}

impl FollowerLink for FollowerConnection<'_> {
    fn ask(&mut self, ask: FollowerRequest) -> Result<FollowerResponse, String> {
        let client = self.client.as_ref().ok_or("there is no connection")?;
        let message = ask.encode().map_err(|error| error.to_string())?;
        let answer = client.call(REPLICAS, message, ANSWER).map_err(|error| error.to_string())?;
        FollowerResponse::decode(answer).map_err(|error| error.to_string())
    }

    fn hold(&mut self) {
        if self.held.is_empty() {
            self.held = self.core.orders();
        }
    }

    fn release(&mut self) {
        self.held.clear();
    }

    fn warn(&mut self, text: String) {
        warn_or_stderr(|| tracing::warn!("{text}"));
    }
}
