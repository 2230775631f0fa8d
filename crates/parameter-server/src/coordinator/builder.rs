//! The settings of a coordinator.

use super::connect::{Reached, connect};
use super::{ClusterCoordinator, Scheduler};
use crate::remote::Sender;
use crate::strategy::ParameterServerStrategy;
use distribute_base::{Error, Result};
use distribute_coordinator::{Coordinator, Options};
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`ClusterCoordinator`]; see [`ClusterCoordinator::builder`].
#[derive(Debug)]
pub struct ClusterCoordinatorBuilder {
    strategy: ParameterServerStrategy,
    options: Options,
}

impl ClusterCoordinatorBuilder {
    pub(super) fn new(strategy: &ParameterServerStrategy) -> Self {
        Self { strategy: strategy.clone(), options: Options::default() }
    }

    /// Sets how long all workers may take to answer for the first time; 60 s by default. Workers may start in
    /// any order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.options.join_timeout = timeout;
        self
    }

    /// Sets how long the coordinator waits while no worker is connected; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// Sets how long a closure may run, and how long a worker may take to create a value; 10 minutes by
    /// default. A call that takes longer fails, and its worker is disconnected until it answers again.
    pub fn closure_timeout(mut self, timeout: Duration) -> Self {
        self.options.closure_timeout = timeout;
        self
    }

    /// Sets how long a closure may still run after it was cancelled; 10 s by default. After that, its worker is
    /// disconnected until it answers again.
    pub fn cancel_timeout(mut self, timeout: Duration) -> Self {
        self.options.cancel_timeout = timeout;
        self
    }

    /// Sets how many closures may wait for a worker; 262,144 by default. If the queue is full,
    /// [`schedule`](ClusterCoordinator::schedule) blocks.
    pub fn queue(mut self, closures: usize) -> Self {
        self.options.queue = closures;
        self
    }

    /// Sets how many closures a worker may have at once, if they are short and many are queued; 16 by default.
    /// With 1, each closure is sent after the previous one has ended.
    pub fn window(mut self, closures: usize) -> Self {
        self.options.window = closures;
        self
    }

    /// Sets how often a closure is retried because its worker disconnected; 5 times by default.
    pub fn worker_losses(mut self, times: u32) -> Self {
        self.options.losses = times;
        self
    }

    /// Sets how often a closure is retried because a parameter server did not answer; twice by default.
    #[doc(alias = "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES")]
    pub fn server_failures(mut self, times: u32) -> Self {
        self.options.server_failures = times;
        self
    }

    /// Waits until all workers have answered, and creates the coordinator. If the strategy already has one,
    /// returns that one and ignores these settings.
    ///
    /// # Errors
    /// Returns the errors of [`ClusterCoordinator::new`].
    pub fn build(self) -> Result<ClusterCoordinator> {
        let Self { strategy, options } = self;
        // CC-1
        let inner = strategy.clone().coordinator(|| {
            let Reached { workers, functions } = connect(&strategy)?;
            let settings = postcard::to_stdvec(&strategy.settings().shared())
                .map_err(|error| Error::invalid("ClusterCoordinator::new", error.to_string()))?;
            strategy.servers().share();
            let job = strategy.servers().begin_job()?;
            let coordinator = Coordinator::new(workers, functions, job, settings.into(), options)?;
            let coordinator = Arc::new(coordinator);
            Ok(Arc::new(Scheduler { coordinator, strategy, sender: Sender::new() }))
        })?;
        Ok(ClusterCoordinator(inner))
    }
}
