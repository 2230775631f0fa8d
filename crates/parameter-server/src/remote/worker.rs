//! The context of a remote function: the worker that runs it.

use crate::strategy::ParameterServerStrategy;
use candle_nn::VarBuilder;
use distribute_base::{Error, Result};
use distribute_cluster::Job;
use distribute_coordinator::Cancellation;
use distribute_core::Variables;
use distribute_core::internal::{current_kind, current_strategy};
use distribute_data::InputContext;
use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

/// The worker that runs a remote function, as the function sees it.
pub struct WorkerContext {
    index: usize,
    strategy: ParameterServerStrategy,
    cancellation: Cancellation,
    variables: OnceLock<Variables>,
}

impl WorkerContext {
    /// Creates the context of a strategy's worker, to call a remote function directly, as in tests. The worker
    /// is that of the strategy's task, or worker 0.
    pub fn new(strategy: &ParameterServerStrategy) -> Self {
        let task = strategy.cluster_resolver().and_then(distribute_cluster::resolver::ClusterResolver::task);
        let index = task.filter(|task| task.job == Job::Worker).map_or(0, |task| task.index);
        Self::of_call(index, strategy.clone(), Cancellation::default())
    }

    pub(super) fn of_call(
        index: usize,
        strategy: ParameterServerStrategy,
        cancellation: Cancellation,
    ) -> Self {
        Self { index, strategy, cancellation, variables: OnceLock::new() }
    }

    /// Returns the number of the worker, counted from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.strategy.workers()
    }

    /// Returns the worker's own strategy, with a replica on each of its devices. `run` and collectives involve
    /// only these replicas. Gradients are reduced over these replicas and sent to the parameter servers.
    ///
    /// A model for all of the replicas is made by [`replicate`](distribute_core::Strategy::replicate), and kept
    /// as a [`Replicated`](distribute_core::Replicated).
    pub fn strategy(&self) -> &ParameterServerStrategy {
        &self.strategy
    }

    /// Returns candle's `VarBuilder` for a model of a worker with a single replica. Its variables are on the
    /// parameter servers and shared by all workers. [`variables`](Self::variables) returns the variables
    /// created with it, for an optimizer.
    ///
    /// ```
    /// use candle_nn::{Linear, linear};
    /// use distribute::remote::WorkerContext;
    /// use distribute::{Adam, Result};
    ///
    /// struct Model(Linear, Adam);
    ///
    /// #[distribute::remote]
    /// fn build(worker: &WorkerContext) -> Result<Model> {
    ///     let net = linear(4, 2, worker.var_builder()?)?;
    ///     Ok(Model(net, Adam::new(worker.variables(), 0.1)?))
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: the worker has several replicas. Each of them needs a model; use
    ///   [`replicate`](distribute_core::Strategy::replicate).
    pub fn var_builder(&self) -> Result<VarBuilder<'static>> {
        if self.strategy.num_replicas_in_sync() > 1 {
            return Err(Error::NotSupported {
                operation: "WorkerContext::var_builder",
                strategy: self.strategy.extended().kind(),
                what: "one model for several replicas of a worker",
                advice: "make one for each by worker.strategy().replicate(…), and keep the Replicated",
            });
        }
        self.variables().builder(0)
    }

    /// Returns the variables created with [`var_builder`](Self::var_builder) in this call.
    pub fn variables(&self) -> &Variables {
        self.variables.get_or_init(|| Variables::new(&self.strategy, 0))
    }

    /// Returns the input context of this worker: its number among as many input pipelines as there are workers,
    /// and its number of replicas.
    #[doc(alias = "tf.distribute.InputContext")]
    pub fn input_context(&self) -> InputContext {
        InputContext {
            num_input_pipelines: self.workers(),
            input_pipeline_id: self.index,
            num_replicas_in_sync: self.strategy.num_replicas_in_sync(),
        }
    }

    /// Returns whether the call was cancelled. A function that runs for long should check this from time to
    /// time, and return any error if it is true.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }
}

impl fmt::Debug for WorkerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerContext(worker {} of {}, {:?})", self.index, self.workers(), self.strategy)
    }
}

thread_local! {
    /// The number of the worker whose call runs on this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A guard that marks this thread as running a worker's call until it is dropped.
pub(super) struct Calling(Option<usize>);

impl Calling {
    pub(super) fn of(worker: usize) -> Self {
        Self(CURRENT.replace(Some(worker)))
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

// CC-13
/// Returns the number of the worker that runs the current remote function. Replicas of that worker may also
/// call this.
///
/// # Errors
/// - [`Error::InvalidArgument`]: the caller is not in a remote function.
#[doc(alias = "tf.distribute.coordinator.experimental_get_current_worker_index")]
pub fn current_worker_index() -> Result<usize> {
    // Replicas run on threads of their own, in a context of the worker's strategy.
    let of_strategy = || current_strategy()?.extended().parameter_servers()?.worker();
    CURRENT.get().or_else(of_strategy).ok_or_else(|| {
        let found = current_kind();
        let reason = format!(
            "there is no current worker in {found} outside of a remote function, which a coordinator has scheduled; worker.index() \
             is the number in there"
        );
        Error::invalid("current_worker_index", reason)
    })
}
