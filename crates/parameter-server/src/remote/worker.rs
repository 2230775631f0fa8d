//! [`WorkerContext`], which describes the worker that runs a remote function.

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

/// The context that a remote function receives. It describes the worker that runs the function.
pub struct WorkerContext {
    index: usize,
    strategy: ParameterServerStrategy,
    cancellation: Cancellation,
    variables: OnceLock<Variables>,
}

impl WorkerContext {
    /// Creates a context for calling a remote function directly, for example in tests. The worker is the task of
    /// `strategy`, or worker 0 if the task is not a worker.
    pub fn new(strategy: &ParameterServerStrategy) -> Self {
        let task = strategy.cluster_resolver().and_then(distribute_cluster::resolver::ClusterResolver::task);
        let index = task.filter(|task| task.job == Job::Worker).map_or(0, |task| task.index);
        Self::for_call(index, strategy.clone(), Cancellation::default())
    }

    pub(super) fn for_call(
        index: usize,
        strategy: ParameterServerStrategy,
        cancellation: Cancellation,
    ) -> Self {
        Self { index, strategy, cancellation, variables: OnceLock::new() }
    }

    /// Returns the index of the worker, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of workers in the cluster.
    pub fn workers(&self) -> usize {
        self.strategy.workers()
    }

    /// Returns the worker's own strategy, which has one replica per device of the worker. `run` and
    /// collectives involve only these replicas. Gradients are reduced over them and then sent to the
    /// parameter servers.
    ///
    /// Use [`replicate`](distribute_core::Strategy::replicate) to create a model for all replicas, and keep
    /// it as a [`Replicated`](distribute_core::Replicated).
    pub fn strategy(&self) -> &ParameterServerStrategy {
        &self.strategy
    }

    /// Returns a candle `VarBuilder` for a model, if the worker has a single replica. Its variables are on
    /// the parameter servers, and all workers share them. [`variables`](Self::variables) returns the
    /// variables that were created with it, to pass to an optimizer.
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
                advice: "create one for each with worker.strategy().replicate(…), and keep the Replicated",
            });
        }
        self.variables().builder(0)
    }

    /// Returns the variables that were created with [`var_builder`](Self::var_builder) in this call.
    pub fn variables(&self) -> &Variables {
        self.variables.get_or_init(|| Variables::new(&self.strategy, 0))
    }

    /// Returns the input context of this worker. Each worker is one input pipeline. The context contains the index of
    /// this pipeline and the number of the worker's replicas.
    #[doc(alias = "tf.distribute.InputContext")]
    pub fn input_context(&self) -> InputContext {
        InputContext {
            num_input_pipelines: self.workers(),
            input_pipeline_id: self.index,
            num_replicas_in_sync: self.strategy.num_replicas_in_sync(),
        }
    }

    /// Returns `true` if the call has been cancelled. A function that runs for a long time should check this from time
    /// to time and, if the result is `true`, return any error.
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
    /// The index of the worker whose call is running on this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A guard that marks this thread as running a worker's call until the guard is dropped.
pub(super) struct CurrentWorker(Option<usize>);

impl CurrentWorker {
    pub(super) fn of(worker: usize) -> Self {
        Self(CURRENT.replace(Some(worker)))
    }
}

impl Drop for CurrentWorker {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

// CC-13
/// Returns the index of the worker that runs the current remote function. The worker's replicas may also call this.
///
/// # Errors
/// - [`Error::InvalidArgument`]: called outside a remote function.
#[doc(alias = "tf.distribute.coordinator.experimental_get_current_worker_index")]
pub fn current_worker_index() -> Result<usize> {
    // Replicas run on other threads, in a context of the worker's strategy.
    let of_strategy = || current_strategy()?.extended().parameter_servers()?.worker();
    CURRENT.get().or_else(of_strategy).ok_or_else(|| {
        let found = current_kind();
        let reason = format!(
            "there is no current worker in {found} outside a remote function that a coordinator has scheduled; \
             inside, use worker.index()"
        );
        Error::invalid("current_worker_index", reason)
    })
}
