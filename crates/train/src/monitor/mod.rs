//! The monitor of a running job: a page for browsers, JSON for programs and `distribute status`, metrics for
//! Prometheus.
//!
//! | file | contents |
//! |---|---|
//! | `job` | reports of a strategy and a coordinator |
//! | `waits` | which replica or worker waits for which, and why; a pure function |

mod job;
mod waits;

#[doc(inline)]
pub use distribute_monitor::{
    Activity, Coordinator, DEFAULT_ADDRESS, Error, FORMAT, ParameterServer, Progress, Replica, Report,
    Sample, Wait, Worker, World, table,
};

use distribute_base::Result;
use distribute_core::Strategy;
use distribute_core::internal::WeakStrategy;
use distribute_monitor::Server;
use distribute_parameter_server::ClusterCoordinator;
use job::Job;
use std::net::SocketAddr;

/// A server that shows the status of a job until it is dropped. It does not keep the strategy or the
/// coordinator alive.
///
/// A page at its address shows the workers, the speed, the loss, the call of each replica, and waits with
/// their reasons. It also shows the queue of a coordinator and the rows on parameter servers. The same is
/// available as JSON at `/status.json`, which `distribute status` prints as a table. Metrics for Prometheus
/// are at `/metrics`. By default, other machines cannot reach it.
///
/// Loss and examples are those of [`minimize`](distribute_optimizer::Optimizer::minimize). The calls of
/// replicas come from the spans of a [timeline](distribute_trace), which cost about a microsecond each while a
/// monitor exists. A program with its own `tracing` subscriber has to add
/// [`trace::layer`](distribute_trace::layer()) to it.
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
/// A client has five seconds to send its request and five to read the response, and there can be 16 clients at
/// a time. A client that hangs does not affect the job. If the job itself hangs, the page shows the last known
/// status and its age.
#[derive(Debug)]
#[must_use = "dropped, nobody can watch the job"]
pub struct Monitor {
    strategy: WeakStrategy,
    /// The server; `None` on workers other than the chief.
    server: Option<Server>,
}

/// The settings of a [`Monitor`].
#[derive(Debug)]
pub struct MonitorBuilder {
    strategy: Strategy,
    coordinator: Option<ClusterCoordinator>,
    address: String,
    network: bool,
}

impl Monitor {
    /// Starts showing a job at [`DEFAULT_ADDRESS`].
    ///
    /// # Errors
    /// Returns the errors of [`MonitorBuilder::start`].
    pub fn start(strategy: &Strategy) -> Result<Self> {
        Self::builder(strategy).start()
    }

    /// Creates a builder for a monitor with other settings.
    pub fn builder(strategy: &Strategy) -> MonitorBuilder {
        MonitorBuilder {
            strategy: strategy.clone(),
            coordinator: None,
            address: DEFAULT_ADDRESS.into(),
            network: false,
        }
    }

    /// Returns the address of the page; `None` on workers other than the chief.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Returns the current report; `None` on workers other than the chief.
    pub fn report(&self) -> Option<Report> {
        self.server.as_ref().map(Server::report)
    }

    /// Counts a step that was made elsewhere, such as by a closure of a coordinator, with its number of
    /// examples and its loss.
    ///
    /// Steps of this strategy's optimizers are counted automatically.
    pub fn record(&self, examples: usize, loss: f64) {
        if let Some(strategy) = self.strategy.upgrade() {
            strategy.pulse().beat(examples as f64, Some(loss));
        }
    }
}

impl MonitorBuilder {
    /// Adds the queue and the workers of this coordinator to the page.
    pub fn coordinator(mut self, coordinator: &ClusterCoordinator) -> Self {
        self.coordinator = Some(coordinator.clone());
        self
    }

    /// Sets the address of the page, instead of [`DEFAULT_ADDRESS`]. Port 0 selects a free port.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// Allows an address that other machines can reach. They can then read the status of the job, and nothing
    /// is encrypted.
    pub fn allow_plain_text_on_the_network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Starts the monitor. Does nothing on workers other than the chief.
    ///
    /// # Errors
    /// - [`Error::Monitor`](distribute_base::Error::Monitor): the address is in use.
    /// - [`Error::Monitor`](distribute_base::Error::Monitor): other machines can reach the address, and that
    ///   is not allowed.
    pub fn start(self) -> Result<Monitor> {
        let Self { strategy, coordinator, address, network } = self;
        let chief = strategy.should_save_summary();
        let serve = || Server::start(&address, network, Job::new(&strategy, coordinator.as_ref()));
        let server = chief.then(serve).transpose()?;
        Ok(Monitor { strategy: strategy.downgrade(), server })
    }
}
