//! The error type of this project. An error describes what failed, where it failed, and a remedy.

mod cause;
mod conversions;
mod kind;

pub use kind::ErrorKind;

use crate::context_kind::ContextKind;
use crate::variable_kinds::{VariableAggregation, VariableSynchronization};
use distribute_cluster::{Blame, ClusterError, Process};
use distribute_net::JoinError;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The result type of this project. The closures that programs pass also return it.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns `Ok` with this crate's [`Result`] type. Use it in closures that may return more than one type of error, such
/// as the closure of `replicate`. The compiler cannot infer the error type of a plain `Ok` there (E0283).
///
/// ```
/// # use distribute::prelude::*;
/// use candle_nn::linear;
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|vb| {
///     let hidden = linear(4, 8, vb.pp("hidden"))?;
///     distribute::Ok((hidden, linear(8, 2, vb.pp("out"))?))
/// })?;
/// assert_eq!(model.variables.elements(), 4 * 8 + 8 + 8 * 2 + 2);
/// # Ok::<(), distribute::Error>(())
/// ```
#[allow(non_snake_case)]
pub fn Ok<T>(value: T) -> Result<T> {
    Result::Ok(value)
}

/// An error of this crate. Most messages name the operation and a remedy; those about a replica, a peer or a step name
/// it.
///
/// `Debug` prints the same text as `Display`, because `unwrap` and a `main` that returns an error use `Debug`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The closure of `run` failed on a replica.
    #[error("replica {replica} ({device}) failed in {}", in_step(*step, source))]
    Replica {
        /// The global id of the replica.
        replica: usize,
        /// The device that the replica runs on.
        device: String,
        /// The sequence number of the step on this strategy, from 1.
        step: u64,
        /// The error that the closure returned, or the reason why the replica failed: a panic, or a collective that the
        /// closure did not call.
        #[source]
        source: Box<Error>,
    },
    /// A worker failed, either in its own program or in its share of an operation of all workers.
    #[error("worker {worker}{} failed: {source}", located(process))]
    Worker {
        /// The rank of the worker, from 0.
        worker: usize,
        /// The task and address of the worker, if workers are processes.
        process: Option<Box<Process>>,
        /// The worker's own error; on other workers, an error with the same text.
        #[source]
        source: Box<Error>,
    },
    /// The description of the cluster is malformed, or does not contain this process.
    #[error(transparent)]
    Cluster(Box<ClusterError>),
    /// This worker could not join the other workers.
    #[error(transparent)]
    Join(Box<JoinError>),
    /// A function of the program panicked, such as the closure of `run` on a replica, or a learning-rate schedule.
    #[error("panicked: {message}")]
    Panicked {
        /// The panic message.
        message: String,
    },
    /// The replicas or workers did not make the same calls, or one of them failed or did not arrive in time. Every
    /// replica gets the same text.
    #[error("{0}")]
    Collective(Arc<Blame>),
    /// The closure failed on a replica whose per-replica batch has no rows.
    #[error(
        "replica {replica} got an empty batch, and the closure failed on it; {advice}; the closure's error: {source}"
    )]
    EmptyPiece {
        /// The global id of the replica.
        replica: usize,
        /// Advice on what to do instead.
        advice: &'static str,
        /// The error that the closure returned.
        #[source]
        source: Box<Error>,
    },
    /// The operation cannot be called in this context.
    #[error("{operation} requires {required}, but was called in {found}; {advice}")]
    WrongContext {
        /// The function that was called.
        operation: &'static str,
        /// The context that the operation requires.
        required: ContextKind,
        /// The context in which the function was called.
        found: ContextKind,
        /// Advice on what to call instead.
        advice: &'static str,
    },
    /// The variable does not support the operation in this context, because of its synchronization and aggregation.
    #[error(
        "{operation}: variable {variable} (synchronization {synchronization}, aggregation {aggregation}) does not \
         allow this in {found}; {advice}"
    )]
    VariableAccess {
        /// The function that was called.
        operation: &'static str,
        /// The name of the variable.
        variable: String,
        /// The synchronization of the variable.
        synchronization: VariableSynchronization,
        /// The aggregation of the variable.
        aggregation: VariableAggregation,
        /// The context in which the function was called.
        found: ContextKind,
        /// Advice on what to do instead.
        advice: &'static str,
    },
    /// A value that belongs to one strategy was used with another strategy.
    #[error("{operation}: mixing different strategies: {current}, but {other}; {advice}")]
    MixedStrategies {
        /// The function that was called.
        operation: &'static str,
        /// The current run or scope and its strategy, or a note that no strategy has been entered.
        current: String,
        /// The value and the strategy to which it belongs.
        other: String,
        /// Advice on what to do instead.
        advice: &'static str,
    },
    /// A value that was created for a different number of replicas was passed to a strategy.
    #[error("{operation}: {path} is {value}, but there {}; {}", local(*replicas), PARTS_ADVICE)]
    Parts {
        /// The function that was called.
        operation: &'static str,
        /// The path to the value in the arguments, such as `args.1[0]`.
        path: String,
        /// The type of the value, and the number of its parts.
        value: String,
        /// The number of local replicas of the strategy.
        replicas: usize,
    },
    /// A replica context was used after its `run` had returned, or on a different replica's thread.
    #[error(
        "{operation}: this replica context belongs to another run or thread (replica {replica}, step {step}); use the \
         one passed to the closure, on the thread that runs it"
    )]
    StaleContext {
        /// The function that was called.
        operation: &'static str,
        /// The id of the replica to which the context belongs.
        replica: usize,
        /// The sequence number of the step to which the context belongs.
        step: u64,
    },
    /// The device does not exist or cannot be used, or its name cannot be parsed.
    #[error("device {name:?}: {reason}")]
    Device {
        /// The name of the device.
        name: String,
        /// The reason why the device cannot be used.
        reason: String,
    },
    /// An argument is out of range or inconsistent.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// The function that was called.
        operation: &'static str,
        /// The expectation that the argument violates, and a remedy.
        reason: String,
    },
    /// Variables have no gradient on any replica in an optimizer's first step, and the optimizer is configured to
    /// report this as an error.
    #[error("{operation}: {reason}")]
    MissingGradients {
        /// The function that was called.
        operation: &'static str,
        /// The names of all variables without a gradient.
        variables: Vec<String>,
        /// The variables without a gradient, the likely cause, and a remedy.
        reason: String,
    },
    /// A loss or a gradient is NaN or infinite, and the optimizer is configured to report this as an error.
    #[error("{operation}: {reason}")]
    NotFinite {
        /// The function that was called.
        operation: &'static str,
        /// The global id of the first replica with a NaN or infinite number.
        replica: usize,
        /// The sequence number of the step, as in [`Error::Replica`].
        step: u64,
        /// The first variable, by name, whose gradient on that replica is not finite; `None` if only the loss
        /// is not finite.
        variable: Option<String>,
        /// The location of the number, its likely origin, and what to check.
        reason: String,
    },
    /// A variable that must be equal on all workers differs. All workers get the same text, and the step has not begun.
    #[error("run: before step {step}, {reason}")]
    Drift {
        /// The sequence number of the step that would have begun, as in [`Error::Replica`].
        step: u64,
        /// The name of the first variable that differs, in the order of creation.
        variable: String,
        /// The names of all variables that differ, in the order of creation.
        variables: Vec<String>,
        /// The workers on which the value of a variable differs from the majority's; all workers if a variable has no
        /// value that a majority has.
        workers: Vec<usize>,
        /// A message that names variables and workers, and describes a remedy.
        reason: String,
    },
    /// New workers are waiting to join, or a spare takes the place of a slow worker, and the step has not begun on any
    /// worker. It can be run after the group has re-formed.
    #[error(
        "run: before step {step}, {waiting} more worker{} to participate; make steps with Training::run, or pass this \
         error to Training::recover, which admits them",
        if *waiting == 1 { " waits" } else { "s wait" }
    )]
    WorkersWaiting {
        /// The sequence number of the step that would have begun, as in [`Error::Replica`].
        step: u64,
        /// The number of workers that are waiting.
        waiting: usize,
    },
    /// The training has ended on all workers without this process, which was a spare. Nothing is left to do. A `main`
    /// with `#[distribute::main]` that returns this error exits with 0.
    #[error(
        "{operation}: the training has ended on all workers, and this process, which is a spare, was not needed: nothing \
         is left to do"
    )]
    UnusedSpare {
        /// The function that was called.
        operation: &'static str,
    },
    /// A failure that no other variant describes. For example, a server cannot start, workers differ, a wait timed out,
    /// or a call is not possible while each worker trains alone. The kind determines how to react.
    #[error("{operation}: {reason}")]
    Failed {
        /// The kind of the failure.
        kind: ErrorKind,
        /// The function that was called.
        operation: &'static str,
        /// A description of the failure, its cause, and a remedy.
        reason: String,
    },
    /// A training run that received a notice to exit has saved a complete checkpoint, but only after the grace period.
    /// Schedulers kill processes at the end of this period.
    #[error(
        "Preemption::save: {} was saved after step {step}, {:.1} s after the notice, but the grace period is {:.1} s; \
         make the scheduler wait longer, or save more often and exit without this checkpoint",
        saved.display(), took.as_secs_f64(), grace.as_secs_f64()
    )]
    GracePeriod {
        /// The sequence number of the last step.
        step: u64,
        /// The path of the checkpoint.
        saved: PathBuf,
        /// The time from the notice to the end of saving.
        took: Duration,
        /// The length of the grace period.
        grace: Duration,
    },
    /// An `Evaluator` timed out while waiting for the next checkpoint of a training run, and has not seen the last one.
    #[error(
        "Evaluator::run: no checkpoint in {} for {:.1} s{}, and none there is marked as the last of the training; \
         check whether it still runs, set Evaluator::patience to more than a checkpoint takes, or mark the last one \
         (runner::LAST)",
        folder.display(), waited.as_secs_f64(), after.as_ref().map_or(String::new(), |after| format!(" since {after}"))
    )]
    NoCheckpoint {
        /// The folder that was watched.
        folder: PathBuf,
        /// The latest checkpoint that was found; `None` if there was none.
        after: Option<String>,
        /// The time that the evaluator waited.
        waited: Duration,
    },
    /// A step of an optimizer failed after it had made some of its changes. If the state is sharded, this worker had
    /// updated its shard of the state, but no weight. If workers store tables together, some of the tables may have
    /// been updated, but no other variable. Later steps of the optimizer, and saves of sharded state, fail until the
    /// optimizer is restored.
    ///
    /// Steps also return this error after a failed restore of tables that workers store together, until a restore
    /// succeeds. `use_ema` returns the error if the weights could not be restored after its closure failed.
    #[error("{operation}: {reason}")]
    IncompleteState {
        /// The function that was called.
        operation: &'static str,
        /// The sequence number of the step among this optimizer's steps.
        step: u64,
        /// A description of the point at which the step failed, and a remedy.
        reason: String,
        /// The error that caused the step to fail; `None` in the errors of later steps and saves.
        #[source]
        source: Option<Box<Error>>,
    },
    /// The strategy does not support the operation or setting.
    #[error("{operation}: {strategy} does not support {what}; {advice}")]
    NotSupported {
        /// The function that was called.
        operation: &'static str,
        /// The kind of the strategy, such as `MirroredStrategy`.
        strategy: &'static str,
        /// The feature that is not supported.
        what: &'static str,
        /// Advice on what to do instead.
        advice: &'static str,
    },
    /// A pass over a dataset has ended. Iterators over a distributed dataset return `None` instead of this error.
    #[error("{operation}: the pass is at its end; start another with iter() or Batches::begin()")]
    OutOfRange {
        /// The function that was called.
        operation: &'static str,
    },
    /// Tensors or nests do not match the operation.
    #[error("{operation}: {source}")]
    Tensor {
        /// The function that was called.
        operation: &'static str,
        /// A description of the mismatch.
        #[source]
        source: distribute_tensor::Error,
    },
    /// A candle operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// Reading or processing data failed.
    #[error(transparent)]
    Data(#[from] distribute_data::Error),
    /// A checkpoint could not be saved or restored.
    #[error(transparent)]
    Checkpoint(#[from] distribute_checkpoint::Error),
    /// A file of the Hugging Face hub could neither be downloaded nor found in the cache. Exists with the feature
    /// `hub`.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(Box<distribute_hub::Error>),
    /// A job cannot be monitored. Exists with the feature `monitor`.
    #[cfg(feature = "monitor")]
    #[error(transparent)]
    Monitor(#[from] distribute_monitor::Error),
    /// A summary for TensorBoard could not be written.
    #[error(transparent)]
    Summary(#[from] distribute_summary::Error),
    /// A parameter server rejected a request or did not answer. Unless the server rejected it, the request may have
    /// been applied. It may also have been applied on other servers.
    #[error("{operation}: {source}")]
    Server {
        /// The operation that sent the request.
        operation: &'static str,
        /// The server, the request, and the reason.
        #[source]
        source: Box<distribute_ps_tables::ChannelError>,
    },
    /// An operation of a coordinator failed. For example, a scheduled closure failed, or workers are missing.
    #[error(transparent)]
    Coordinator(#[from] distribute_coordinator::Error),
    /// An argument of a partitioner, a placement policy or a table is invalid.
    #[error(transparent)]
    Params(Box<distribute_ps_tables::Error>),
    /// An optimizer's hyper-parameter is out of range.
    #[error(transparent)]
    Hyperparameter(#[from] distribute_optim::InvalidHyperparameter),
    /// A file operation failed, or a thread could not be started.
    #[error("{operation}: {source}")]
    Io {
        /// A description of the operation that failed.
        operation: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The error of an operation that all replicas performed together. Each replica gets a handle to the same error.
    #[error("{0}")]
    Shared(Arc<Error>),
    /// An error of the program's own code.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A program that exits with the error prints this, and a part of the text may come from another process.
        f.write_str(&distribute_log::plain_lines(&self.to_string()))
    }
}

impl Error {
    /// Wraps the program's own error, so that closures can return it.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Other(error.into())
    }

    /// Adds `segment` (such as `.1` or `[3]`) to the front of the path of a [`Parts`](Error::Parts) error.
    /// Leaves other errors unchanged.
    #[doc(hidden)]
    pub fn within(mut self, segment: impl fmt::Display) -> Self {
        if let Error::Parts { path, .. } = &mut self {
            *path = format!("{segment}{path}");
        }
        self
    }

    /// Sets the operation of a [`Parts`](Error::Parts) error, and adds the name of the argument to the front
    /// of its path. Leaves other errors unchanged.
    #[doc(hidden)]
    pub fn of_argument(mut self, called: &'static str, argument: &str) -> Self {
        if let Error::Parts { operation, path, .. } = &mut self {
            *operation = called;
            path.insert_str(0, argument);
        }
        self
    }

    /// Returns an error that reports the failure of a worker whose task and address are unknown.
    #[doc(hidden)]
    pub fn worker_failed(worker: usize, source: Self) -> Self {
        Error::Worker { worker, process: None, source: Box::new(source) }
    }

    #[doc(hidden)]
    pub fn invalid(operation: &'static str, reason: impl Into<String>) -> Self {
        Error::InvalidArgument { operation, reason: reason.into() }
    }

    /// Returns an error that consists only of a kind, an operation and a message.
    #[doc(hidden)]
    pub fn failed(kind: ErrorKind, operation: &'static str, reason: impl Into<String>) -> Self {
        Error::Failed { kind, operation, reason: reason.into() }
    }

    #[doc(hidden)]
    pub fn tensor(operation: &'static str) -> impl FnOnce(distribute_tensor::Error) -> Self {
        move |source| Error::Tensor { operation, source }
    }
}

const PARTS_ADVICE: &str = "use values and models of the strategy that gets them";

fn located(process: &Option<Box<Process>>) -> String {
    process.as_ref().map(|process| format!(" ({process})")).unwrap_or_default()
}

fn local(replicas: usize) -> String {
    match replicas {
        1 => "is 1 local replica".into(),
        n => format!("are {n} local replicas"),
    }
}

/// Returns the text of an error, preceded by the step number unless the error comes from a collective and its text
/// already begins with the number.
fn in_step(step: u64, error: &Error) -> String {
    let text = error.to_string();
    let after = text.strip_prefix(&format!("step {step}")).filter(|_| matches!(error, Error::Collective(_)));
    if after.is_some_and(|rest| rest.starts_with([',', ':'])) { text } else { format!("step {step}: {text}") }
}

/// Returns the error for a closure that panicked with the payload `panic`.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Panicked { message: message.unwrap_or_else(|| "without a message".into()) }
}
