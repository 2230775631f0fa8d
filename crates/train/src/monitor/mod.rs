//! Watching a running job: a page for browsers, JSON for programs and `distribute status`, metrics for Prometheus.
//!
//! | file | what it is |
//! |---|---|
//! | `job` | what a strategy and a coordinator say of themselves |
//! | `waits` | who waits for whom and why, a pure function |

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

/// Shows what a job does, until it is dropped. It keeps neither strategy nor coordinator alive.
///
/// At its address there is a page that shows who trains, how fast, the loss, what each replica does, who waits for whom and why, the queue of a
/// coordinator and the rows on parameter servers; the same as JSON at `/status.json`, of which `distribute status` makes a table; and metrics
/// for Prometheus at `/metrics`. Without a request for more, other machines do not reach it.
///
/// Loss and examples are those of [`minimize`](distribute_optimizer::Optimizer::minimize). What replicas do is known by the spans of a [timeline](distribute_trace), which cost about
/// a microsecond each while somebody watches; a program with a `tracing` subscriber of its own adds [`trace::layer`](distribute_trace::layer()) to it.
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
/// # When something breaks
/// Whoever asks has five seconds to do so and five to take the answer, and 16 may ask at once: a browser that hangs concerns the job no more than one that
/// is gone. Where the job itself is stuck, the page shows what was last known, and how old that is.
#[derive(Debug)]
#[must_use = "dropped, nobody can watch the job"]
pub struct Monitor {
    strategy: WeakStrategy,
    /// None on workers that leave it to the chief.
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
    /// Shows what a job does at [`DEFAULT_ADDRESS`].
    ///
    /// # Errors
    /// Those of [`MonitorBuilder::start`].
    pub fn start(strategy: &Strategy) -> Result<Self> {
        Self::builder(strategy).start()
    }

    /// A builder for a monitor with more settings.
    pub fn builder(strategy: &Strategy) -> MonitorBuilder {
        MonitorBuilder {
            strategy: strategy.clone(),
            coordinator: None,
            address: DEFAULT_ADDRESS.into(),
            network: false,
        }
    }

    /// Where the page is: none on workers that are not the chief, which shows it.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// What is shown now; none where nothing is.
    pub fn report(&self) -> Option<Report> {
        self.server.as_ref().map(Server::report)
    }

    /// Counts a step that was made elsewhere, such as by a closure of a coordinator: over how many examples, with which loss. Steps of this strategy's optimizers
    /// are counted by themselves.
    pub fn record(&self, examples: usize, loss: f64) {
        if let Some(strategy) = self.strategy.upgrade() {
            strategy.pulse().beat(examples as f64, Some(loss));
        }
    }
}

impl MonitorBuilder {
    /// Shows this coordinator's queue and workers, too.
    pub fn coordinator(mut self, coordinator: &ClusterCoordinator) -> Self {
        self.coordinator = Some(coordinator.clone());
        self
    }

    /// Where the page is, instead of [`DEFAULT_ADDRESS`]. With port 0, where a port is free.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// Lets the address be one that other machines reach. Whoever does can read what the job does, and nothing is encrypted.
    pub fn allow_plain_text_on_the_network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Shows it. On workers that are not the chief this does nothing.
    ///
    /// # Errors
    /// [`Error::Monitor`](distribute_base::Error::Monitor) for an address that is taken, or that other machines reach where that is not allowed.
    pub fn start(self) -> Result<Monitor> {
        let Self { strategy, coordinator, address, network } = self;
        let chief = strategy.should_save_summary();
        let serve = || Server::start(&address, network, Job::new(&strategy, coordinator.as_ref()));
        let server = chief.then(serve).transpose()?;
        Ok(Monitor { strategy: strategy.downgrade(), server })
    }
}
