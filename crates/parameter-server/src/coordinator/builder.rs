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

    /// How long it may take until all workers have answered for the first time; 60 s by default. They may start in any order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.options.join_timeout = timeout;
        self
    }

    /// How long waiting goes on while no worker is there; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// How long a closure may run, and a worker may take to make a value; 10 minutes by default. What takes longer fails, and its worker begins anew.
    pub fn closure_timeout(mut self, timeout: Duration) -> Self {
        self.options.closure_timeout = timeout;
        self
    }

    /// How long a closure may run on that was cancelled, counted from its beginning; 10 s by default. Then its worker begins anew.
    pub fn cancel_timeout(mut self, timeout: Duration) -> Self {
        self.options.cancel_timeout = timeout;
        self
    }

    /// How many closures may wait for a worker; 262,144 by default. Who schedules more waits.
    pub fn queue(mut self, closures: usize) -> Self {
        self.options.queue = closures;
        self
    }

    /// How many closures a worker may have at once, while they are short and many wait; 16 by default. With 1, each is sent when the one before has ended.
    pub fn window(mut self, closures: usize) -> Self {
        self.options.window = closures;
        self
    }

    /// How often a closure is run again because its worker was lost; 5 times by default.
    pub fn worker_losses(mut self, times: u32) -> Self {
        self.options.losses = times;
        self
    }

    /// How often a closure is run again because a parameter server did not answer; twice by default.
    #[doc(alias = "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES")]
    pub fn server_failures(mut self, times: u32) -> Self {
        self.options.server_failures = times;
        self
    }

    /// Waits until all workers have answered, and makes the coordinator; or gives the one that the strategy has, as it is.
    ///
    /// # Errors
    /// Those of [`ClusterCoordinator::new`].
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
