//! The monitor of a running job: a page for browsers, JSON for programs and `distribute status`, and metrics for
//! Prometheus.
//!
//! [`Monitor::start`] starts a monitor. The page shows which replicas and workers wait, for whom, and where the time of
//! each goes.
//!
//! | file | contents |
//! |---|---|
//! | `job` | reports of a strategy and a coordinator |
//! | `health` | reports of a worker that has no page, for probes |
//! | `waits` | replicas and workers that wait, and for what; a pure function |

mod health;
mod job;
mod waits;

#[doc(inline)]
pub use distribute_monitor::{
    Activity, Coordinator, DEFAULT_ADDRESS, Error, FORMAT, ParameterServer, Progress, Replica, Report,
    Sample, Shard, Wait, Worker, World, table,
};

use distribute_base::Result;
use distribute_core::Strategy;
use distribute_core::internal::WeakStrategy;
use distribute_monitor::Server;
use distribute_parameter_server::ClusterCoordinator;
use health::Health;
use job::Job;
use std::net::SocketAddr;

/// The environment variable with the address for probes.
const HEALTH: &str = "DISTRIBUTE_HEALTH";

/// A server that shows the status of a job until the `Monitor` is dropped. It does not keep the strategy or the
/// coordinator alive.
///
/// The page at its address shows the workers, the speed, the loss, the current call of each replica, and which workers
/// wait for which others and why. It also shows the queue of a coordinator and the rows on parameter servers. The same
/// data is available as JSON at `/status.json`, which `distribute status` prints as a table. Metrics for Prometheus are
/// at `/metrics`. By default, other machines cannot connect to the server.
///
/// `/healthz` and `/readyz` answer probes with 200 or 503. A process is healthy if it has reported its status in the
/// last minute, also while it waits for others. It is ready if the job has all of its workers or, with a coordinator,
/// at least one. [`MonitorBuilder::health`] opens a separate port for these two paths on each worker.
///
/// The loss and the number of examples come from [`minimize`](distribute_optimizer::Optimizer::minimize). The calls
/// of replicas come from the spans of a [timeline](distribute_trace). While a monitor exists, each span costs about
/// a microsecond. A program with its own `tracing` subscriber must add [`trace::layer`](distribute_trace::layer())
/// to it.
///
/// ```
/// use distribute::{monitor::Monitor, prelude::*};
/// let strategy = MirroredStrategy::cpus(2)?;
/// let monitor = Monitor::builder(&strategy).address("127.0.0.1:0").start()?; // a port that is free
/// strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
/// if let Some(address) = monitor.address() {
///     println!("http://{address}"); // on the chief
/// }
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Failures
/// A client has five seconds to send its request and another five to read the response. At most 16 clients are served
/// at a time. A client that hangs does not affect the job. If the job itself hangs, the page shows the last status that
/// was received, and the age of that status.
#[derive(Debug)]
#[must_use = "the monitor stops when this is dropped"]
pub struct Monitor {
    strategy: WeakStrategy,
    /// The server of the page; `None` on workers other than the chief.
    server: Option<Server>,
    /// The server for probes of a worker that has no page.
    health: Option<Server>,
    health_address: Option<SocketAddr>,
}

/// The settings of a [`Monitor`].
#[must_use = "a builder does nothing until `start` is called"]
#[derive(Debug)]
pub struct MonitorBuilder {
    strategy: Strategy,
    coordinator: Option<ClusterCoordinator>,
    address: String,
    network: bool,
    health: Option<String>,
}

impl Monitor {
    /// Starts a monitor of the strategy's job at [`DEFAULT_ADDRESS`].
    ///
    /// # Errors
    /// Returns the errors of [`MonitorBuilder::start`].
    pub fn start(strategy: &Strategy) -> Result<Self> {
        Self::builder(strategy).start()
    }

    /// Returns a builder for a monitor with different settings.
    pub fn builder(strategy: &Strategy) -> MonitorBuilder {
        MonitorBuilder {
            strategy: strategy.clone(),
            coordinator: None,
            address: DEFAULT_ADDRESS.into(),
            network: false,
            health: std::env::var(HEALTH).ok().filter(|address| !address.is_empty()),
        }
    }

    /// Returns the address of the page, including the port that is in use; `None` on workers other than the chief.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Returns the address for probes, with the port that is in use; `None` if there is none.
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.health_address
    }

    /// Returns the latest report; `None` on workers other than the chief.
    pub fn report(&self) -> Option<Report> {
        self.server.as_ref().map(Server::report)
    }

    /// Records a step that a closure of a coordinator has made, for example. `examples` is the number of examples in
    /// the step.
    ///
    /// Steps of this strategy's optimizers are recorded automatically: do not record them again.
    pub fn record(&self, examples: usize, loss: f64) {
        if let Some(strategy) = self.strategy.upgrade() {
            strategy.step_stats().record_step(examples as f64, Some(loss));
        }
    }
}

impl MonitorBuilder {
    /// Adds the queue and the workers of `coordinator` to the page.
    pub fn coordinator(mut self, coordinator: &ClusterCoordinator) -> Self {
        self.coordinator = Some(coordinator.clone());
        self
    }

    /// Sets the address of the page; [`DEFAULT_ADDRESS`] by default. Port 0 selects a free port.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// Permits an address to which other machines can connect. They can then read the status of the job without
    /// authentication and without encryption.
    pub fn allow_plain_text_on_the_network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Sets an address for probes, such as `0.0.0.0:6071`, which each worker opens. By default it is the value of the
    /// environment variable `DISTRIBUTE_HEALTH`, if there is one.
    ///
    /// Any machine that can connect to the address can request `/healthz` and `/readyz`, and nothing else. About the
    /// job, the responses contain only the age of its latest report, the number of its workers, and how many of them
    /// are lost.
    pub fn health(mut self, address: impl Into<String>) -> Self {
        self.health = Some(address.into());
        self
    }

    /// Starts the monitor. Only the chief has a page. Other workers have a server only for probes, if an address for
    /// them is set.
    ///
    /// # Errors
    /// - [`Error::Monitor`](distribute_base::Error::Monitor): an address cannot be opened, for example because it is in
    ///   use, or a thread cannot be started.
    /// - [`Error::Monitor`](distribute_base::Error::Monitor): other machines can connect to the address of the page,
    ///   and this was not allowed.
    pub fn start(self) -> Result<Monitor> {
        let Self { strategy, coordinator, address, network, health } = self;
        let mut monitor =
            Monitor { strategy: strategy.downgrade(), server: None, health: None, health_address: None };
        if strategy.is_chief() {
            let mut server = Server::start(&address, network, Job::new(&strategy, coordinator.as_ref()))?;
            monitor.health_address = health.map(|address| server.add_health(&address)).transpose()?;
            monitor.server = Some(server);
        } else if let Some(address) = health {
            let server = Server::start_health(&address, Health::new(&strategy))?;
            monitor.health_address = Some(server.address());
            monitor.health = Some(server);
        }
        Ok(monitor)
    }
}
