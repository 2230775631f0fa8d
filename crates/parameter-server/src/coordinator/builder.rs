//! The settings of a coordinator.

use super::connect::{ConnectedWorkers, connect};
use super::{ClusterCoordinator, Scheduler};
use crate::remote::Sender;
use crate::strategy::ParameterServerStrategy;
use distribute_base::{Error, Result};
use distribute_coordinator::{Coordinator, Options};
use std::sync::Arc;
use std::time::Duration;

const OPERATION: &str = "ClusterCoordinatorBuilder::build";

/// A builder of a [`ClusterCoordinator`]; see [`ClusterCoordinator::builder`].
#[must_use = "a builder does nothing until `build` is called"]
#[derive(Clone, Debug)]
pub struct ClusterCoordinatorBuilder {
    strategy: ParameterServerStrategy,
    options: Options,
    /// The names of the settings that the program has set explicitly.
    chosen: Vec<&'static str>,
}

impl ClusterCoordinatorBuilder {
    pub(super) fn new(strategy: &ParameterServerStrategy) -> Self {
        Self { strategy: strategy.clone(), options: Options::default(), chosen: Vec::new() }
    }

    fn choose(mut self, setting: &'static str, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        self.chosen.push(setting);
        self
    }

    /// Sets the maximum time that [`build`](Self::build) waits until all workers have answered for the first time; 60 s
    /// by default. After this time it returns an error. Workers may start in any order.
    pub fn join_timeout(self, timeout: Duration) -> Self {
        self.choose("join_timeout", |options| options.join_timeout = timeout)
    }

    /// Sets the maximum time that calls of the coordinator wait while no worker is connected; 60 s by default. After
    /// this time they return an error. Scheduled closures remain queued, and run when a worker connects.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.choose("timeout", |options| options.timeout = timeout)
    }

    /// Sets the maximum time that a closure may run, or that a worker may take to create a value; 10 minutes by
    /// default. A call that takes longer fails, and its worker is disconnected until it answers again.
    pub fn closure_timeout(self, timeout: Duration) -> Self {
        self.choose("closure_timeout", |options| options.closure_timeout = timeout)
    }

    /// Sets the maximum time for which a closure may continue to run after it was cancelled; 10 s by default. After
    /// that, its worker is disconnected until it answers again.
    pub fn cancel_timeout(self, timeout: Duration) -> Self {
        self.choose("cancel_timeout", |options| options.cancel_timeout = timeout)
    }

    /// Sets the maximum number of closures that may wait for a worker; 262,144 by default. If the queue is full,
    /// [`schedule`](ClusterCoordinator::schedule) blocks.
    pub fn queue(self, closures: usize) -> Self {
        self.choose("queue", |options| options.queue = closures)
    }

    /// Sets the maximum number of closures that are sent to a worker before it has returned their results; 16 by
    /// default. A worker is sent several closures only if they are short and many are queued. With 1, each closure is
    /// sent after the previous one has finished.
    pub fn window(self, closures: usize) -> Self {
        self.choose("window", |options| options.window = closures)
    }

    /// Sets the maximum number of times that a closure is retried if its worker disconnects; 5 by default.
    pub fn worker_losses(self, times: u32) -> Self {
        self.choose("worker_losses", |options| options.losses = times)
    }

    /// Sets the maximum number of times that a closure is retried if a parameter server does not answer; 2 by default.
    #[doc(alias = "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES")]
    pub fn server_failures(self, times: u32) -> Self {
        self.choose("server_failures", |options| options.server_failures = times)
    }

    /// Waits until all workers have answered, and creates the coordinator. If the strategy already has one,
    /// returns another handle to it.
    ///
    /// # Errors
    /// - The errors of [`ClusterCoordinator::new`].
    /// - [`Error::InvalidArgument`]: the strategy already has a coordinator, and a setting of this builder
    ///   differs from that coordinator's. The error names the setting and both values.
    pub fn build(self) -> Result<ClusterCoordinator> {
        let Self { strategy, options, chosen } = self;
        // CC-1
        let inner = strategy.clone().coordinator(|| {
            let ConnectedWorkers { workers, functions } = connect(&strategy)?;
            let settings = postcard::to_stdvec(&strategy.settings().shared())
                .map_err(|error| Error::invalid(OPERATION, error.to_string()))?;
            strategy.servers().enable_sharing();
            let job = strategy.servers().begin_job()?;
            let coordinator = Coordinator::new(workers, functions, job, settings.into(), options)?;
            let coordinator = Arc::new(coordinator);
            Ok(Arc::new(Scheduler { coordinator, options, strategy, sender: Sender::new() }))
        })?;
        check(&chosen, &options, &inner.options)?;
        Ok(ClusterCoordinator(inner))
    }
}

/// Checks that an existing coordinator has the same values for the settings that the program has set
/// explicitly.
fn check(chosen: &[&str], options: &Options, existing: &Options) -> Result<()> {
    let (options, existing) = (named(options), named(existing));
    let differ = options
        .iter()
        .zip(&existing)
        .find(|((name, value), (_, existing))| chosen.contains(name) && value != existing);
    let Some(((name, value), (_, existing))) = differ else { return Ok(()) };
    let reason = format!(
        "the strategy already has a coordinator, whose {name} is {existing}, not {value}; set {name} where the first \
         coordinator of the strategy is built, or get that coordinator with ClusterCoordinator::new"
    );
    Err(Error::invalid(OPERATION, reason))
}

/// Returns the values of all settings, with the names of their setters.
fn named(options: &Options) -> [(&'static str, String); 8] {
    let Options { timeout, join_timeout, closure_timeout, cancel_timeout, .. } = options;
    let Options { queue, window, losses, server_failures, .. } = options;
    [
        ("join_timeout", format!("{join_timeout:?}")),
        ("timeout", format!("{timeout:?}")),
        ("closure_timeout", format!("{closure_timeout:?}")),
        ("cancel_timeout", format!("{cancel_timeout:?}")),
        ("queue", queue.to_string()),
        ("window", window.to_string()),
        ("worker_losses", losses.to_string()),
        ("server_failures", server_failures.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chosen_settings_that_differ_are_refused() {
        let existing = Options { queue: 9, ..Options::default() };
        let options = Options { queue: 10, window: 2, losses: 1, ..Options::default() };
        assert!(check(&[], &options, &existing).is_ok());
        assert!(check(&["queue", "window"], &existing, &existing).is_ok());
        for (name, values) in
            [("queue", "is 9, not 10"), ("window", "is 16, not 2"), ("worker_losses", "is 5, not 1")]
        {
            let error = check(&["timeout", name], &options, &existing).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} {values}")), "{error}");
        }
    }
}
