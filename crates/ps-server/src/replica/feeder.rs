//! The thread that keeps the follower of a server up to date.

use super::course::{Course, Way};
use super::message::{Answer, Ask};
use crate::REPLICAS;
use crate::store::{Core, Follower, listed};
use distribute_cluster::{Stopwatch, Task};
use distribute_log::{heard, told};
use distribute_rpc::{Client, ClientBuilder};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The timeout for one response of the follower, which may receive a large table.
const ANSWER: Duration = Duration::from_secs(60);

/// The timeout of one attempt to connect, and the delay before the next one.
const CONNECT: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);

/// The interval of checks whether the follower has restarted while the connection seems to be alive.
const LOOK: Duration = Duration::from_millis(100);

/// A thread that sends changes to the follower, until it is dropped.
#[derive(Debug)]
pub(crate) struct Feeder {
    follower: Arc<Follower>,
    to: Task,
    number: u64,
    thread: Option<JoinHandle<()>>,
}

impl Feeder {
    pub fn start(core: &Arc<Core>, (clients, to, number): (ClientBuilder, Task, u64)) -> io::Result<Self> {
        let follower = Arc::<Follower>::default();
        core.follow(follower.clone());
        let feeding =
            Feeding { core: core.clone(), follower: follower.clone(), clients, to: to.clone(), number };
        let thread = Builder::new().name("distribute-follower".to_owned()).spawn(move || feeding.run())?;
        Ok(Self { follower, to, number, thread: Some(thread) })
    }
}

impl Feeder {
    /// Records that a task has started with this run, and follows server `number`. Returns whether it follows
    /// this server.
    pub fn asked(&self, (by, number): (&Task, u64), run: u64) -> bool {
        let follows = *by == self.to && number == self.number;
        if follows {
            self.follower.update(|state| state.asked = Some(run));
        }
        follows
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.follower.end();
        // This waits for one response at most.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Feeding {
    core: Arc<Core>,
    follower: Arc<Follower>,
    clients: ClientBuilder,
    to: Task,
    number: u64,
}

impl Feeding {
    fn run(&self) {
        let mut course = Course::new(self.to.to_string(), self.number);
        let mut alone: Option<Stopwatch> = None;
        while !self.follower.lock().over {
            let mut over = Over { client: None, core: &self.core, held: Vec::new() };
            let connected = self.clients.connect(&self.to, CONNECT).map_err(|error| error.to_string());
            let Err(reason) = connected.and_then(|client| {
                let (number, follower) = (self.follower.connected(), self.follower.clone());
                client.on_loss(move |reason| follower.disconnected(number, reason));
                over.client = Some(client);
                self.connected(&mut course, &mut over, &mut alone)
            }) else {
                return;
            };
            course.restart(&self.follower, &mut over);
            let names = if self.follower.lock().life > 0 { self.core.names() } else { Vec::new() };
            // There is no warning for a server that has just started, or is coming back.
            if alone.is_none() && !names.is_empty() {
                heard(|| {
                    tracing::warn!(
                        "{}, which follows this server, is away: until it has a copy again, these tables are on this server alone, and \
                         changes wait: {}; {reason}",
                        self.to,
                        listed(&names)
                    );
                });
                alone = Some(Stopwatch::start());
            }
            self.follower.update(|state| state.trouble = Some(reason));
            if self.follower.pause(AGAIN) {
                return;
            }
        }
    }

    /// Sends requests over one connection; returns when the server stops.
    fn connected(
        &self,
        course: &mut Course,
        over: &mut Over<'_>,
        alone: &mut Option<Stopwatch>,
    ) -> Result<(), String> {
        loop {
            let idle = !course.step(&self.core, &self.follower, over)?;
            let is_copied = {
                let state = self.follower.lock();
                if state.over {
                    return Ok(());
                }
                state.is_copied
            };
            if is_copied && let Some(since) = alone.take() {
                self.follower.update(|state| state.trouble = None);
                let count = self.core.names().len();
                told(|| {
                    tracing::info!(
                        "{} has a copy of all {count} tables again, after {:.1} s",
                        self.to,
                        since.seconds()
                    );
                });
            }
            if course.is_old(&self.follower) {
                return Err("it has started again".to_owned());
            }
            if idle {
                let lost = self.follower.await_changes(LOOK).lost.clone();
                lost.map_or(Ok(()), Err)?;
            }
        }
    }
}

/// A connection to the follower, and the locks that block changes during a transfer.
struct Over<'a> {
    client: Option<Client>,
    core: &'a Core,
    held: Vec<MutexGuard<'a, ()>>,
}

impl Way for Over<'_> {
    fn ask(&mut self, ask: Ask) -> Result<Answer, String> {
        let client = self.client.as_ref().ok_or("there is no connection")?;
        let message = ask.encode().map_err(|error| error.to_string())?;
        let answer = client.call(REPLICAS, message, ANSWER).map_err(|error| error.to_string())?;
        Answer::decode(answer).map_err(|error| error.to_string())
    }

    fn hold(&mut self) {
        if self.held.is_empty() {
            self.held = self.core.orders();
        }
    }

    fn release(&mut self) {
        self.held.clear();
    }

    fn tell(&mut self, text: String) {
        heard(|| tracing::warn!("{text}"));
    }
}
