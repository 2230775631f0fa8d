//! The error of this workspace: what failed, where, and what to do.

mod cause;

use crate::context_kind::ContextKind;
use crate::variable_kinds::{VariableAggregation, VariableSynchronization};
use distribute_cluster::{Blame, ClusterError, Process};
use distribute_net::JoinError;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The result of everything in this crate, and of the closures given to it.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// `Ok` of this crate's [`Result`], for closures that may return more than one type of error, such as those of
/// `replicate`, where the compiler cannot infer that of a plain `Ok` (E0283).
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

/// An error of this crate. It names the operation, the replica or peer, the step, and what to do.
///
/// `Debug` prints the same text as `Display`, because a `main` that returns an error and `unwrap` use it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The closure given to `run` failed on a replica. The source is the closure's own error.
    #[error("replica {replica} ({device}) failed in {}", in_step(*step, source))]
    Replica {
        /// The global id of the replica.
        replica: usize,
        /// The device it runs on.
        device: String,
        /// The number of the `run` on this strategy, from 1.
        step: u64,
        /// The closure's error.
        #[source]
        source: Box<Error>,
    },
    /// A worker failed, in its own program or in its part of a common operation. The source is its own error; on other
    /// workers, the text of that error.
    #[error("worker {worker}{} failed: {source}", located(process))]
    Worker {
        /// The number of the worker, from 0.
        worker: usize,
        /// The task and address of the worker, if workers are processes.
        process: Option<Box<Process>>,
        /// Its error.
        #[source]
        source: Box<Error>,
    },
    /// The cluster that this process belongs to is malformed, or has no place for it.
    #[error(transparent)]
    Cluster(Box<ClusterError>),
    /// This worker could not join the others.
    #[error(transparent)]
    Join(Box<JoinError>),
    /// The closure given to `run` panicked on a replica.
    #[error("panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// Replicas did not make the same calls, or one was too late. Every replica gets the same text.
    #[error("{0}")]
    Collective(Arc<Blame>),
    /// The batch of a replica has no rows, and the closure failed on it.
    #[error(
        "replica {replica} got an empty piece of the batch, and the closure failed on it; {advice}; the closure said: {source}"
    )]
    EmptyPiece {
        /// The global id of the replica.
        replica: usize,
        /// The advice: what to do.
        advice: &'static str,
        /// The closure's error.
        #[source]
        source: Box<Error>,
    },
    /// The operation does not belong to the context it was called in.
    #[error("{operation} requires {required}, but was called in {found}; {advice}")]
    WrongContext {
        /// The function that was called.
        operation: &'static str,
        /// The context that the operation needs.
        required: ContextKind,
        /// The context of the call.
        found: ContextKind,
        /// The advice: what to call instead.
        advice: &'static str,
    },
    /// The variable does not support this operation in this context, because of its synchronization and aggregation.
    #[error(
        "{operation}: variable {variable} (synchronization {synchronization}, aggregation {aggregation}) cannot be used so in {found}; {advice}"
    )]
    VariableAccess {
        /// The function that was called.
        operation: &'static str,
        /// The variable's name.
        variable: String,
        /// The variable's synchronization.
        synchronization: VariableSynchronization,
        /// The variable's aggregation.
        aggregation: VariableAggregation,
        /// The context of the call.
        found: ContextKind,
        /// The advice: what to do instead.
        advice: &'static str,
    },
    /// A value of one strategy was used with another.
    #[error("{operation}: mixing different strategies: {current}, but {other}; {advice}")]
    MixedStrategies {
        /// The function that was called.
        operation: &'static str,
        /// The run or scope of the call and its strategy, or a note that none was entered.
        current: String,
        /// The value, and its strategy.
        other: String,
        /// The advice: what to do instead.
        advice: &'static str,
    },
    /// A value that was made for another number of replicas was given to a strategy.
    #[error("{operation}: {path} is {value}, but there {}; {}", local(*replicas), PARTS_ADVICE)]
    Parts {
        /// The function that was called.
        operation: &'static str,
        /// The path to the value in the arguments: `args.1[0]`.
        path: String,
        /// The type of the value, and its number of parts.
        value: String,
        /// The number of local replicas.
        replicas: usize,
    },
    /// A replica context was used after its `run`, or on another replica's thread.
    #[error(
        "{operation}: this replica context belongs to another run or thread (replica {replica}, step {step}); use the one given to the closure, on the thread that runs it"
    )]
    StaleContext {
        /// The function that was called.
        operation: &'static str,
        /// The replica of the stale context.
        replica: usize,
        /// The step of the stale context.
        step: u64,
    },
    /// A device that does not exist, or whose name cannot be parsed.
    #[error("device {name:?}: {reason}")]
    Device {
        /// The name given.
        name: String,
        /// The reason.
        reason: String,
    },
    /// An argument is out of range or inconsistent.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// The function that was called.
        operation: &'static str,
        /// The reason, what was expected, and what to do.
        reason: String,
    },
    /// Variables have no gradient on any replica in an optimizer's first step, and the optimizer was told to refuse
    /// that.
    #[error("{operation}: {reason}")]
    MissingGradients {
        /// The function that was called.
        operation: &'static str,
        /// The names of all of them.
        variables: Vec<String>,
        /// The list of variables, the likely cause, and what to do.
        reason: String,
    },
    /// A loss or a gradient is NaN or infinite, and the optimizer was told to refuse that.
    #[error("{operation}: {reason}")]
    NotFinite {
        /// The function that was called.
        operation: &'static str,
        /// The global id of the first replica that had it.
        replica: usize,
        /// The number of the step, as in [`Error::Replica`].
        step: u64,
        /// The first variable, by name, whose gradient is not finite on that replica; `None` if only the loss is not.
        variable: Option<String>,
        /// The place of the number, its likely origin, and what to look for.
        reason: String,
    },
    /// A variable that has to be the same on all workers is not. Every worker gets the same text, and the step has not
    /// begun.
    #[error("run: before step {step}, {reason}")]
    Drift {
        /// The number of the step that would have begun, as in [`Error::Replica`].
        step: u64,
        /// The name of the first variable that differs, in the order of creation.
        variable: String,
        /// The workers on which it is not what most have; all of them, where no value is that of most.
        workers: Vec<usize>,
        /// The variable, the workers, and what to do.
        reason: String,
    },
    /// New workers wait to be admitted, and the step has not begun on any worker. The step is made after the group
    /// has re-formed.
    #[error(
        "run: before step {step}, {waiting} more worker{} to take part; have the steps made by Training::run, or give this error to \
         Training::recover, which lets them in",
        if *waiting == 1 { " waits" } else { "s wait" }
    )]
    WorkersWaiting {
        /// The number of the step that would have begun, as in [`Error::Replica`].
        step: u64,
        /// The number of new workers.
        waiting: usize,
    },
    /// A task that serves others cannot.
    #[error("{task} cannot serve: {reason}")]
    Serving {
        /// The task.
        task: distribute_cluster::Task,
        /// The reason, and what to do.
        reason: String,
    },
    /// A training that was asked to stop has saved its checkpoint, which is complete, but after the grace period at
    /// whose end a scheduler kills processes.
    #[error(
        "Preemption::save: {} was saved after step {step}, {:.1} s after the notice, of which the grace period is {:.1} s; have the scheduler wait longer, or save more often and end without this checkpoint",
        saved.display(), took.as_secs_f64(), grace.as_secs_f64()
    )]
    GracePeriod {
        /// The last step.
        step: u64,
        /// The checkpoint.
        saved: PathBuf,
        /// The time from the notice until the checkpoint was saved.
        took: Duration,
        /// The grace period.
        grace: Duration,
    },
    /// An `Evaluator` has waited in vain for the next checkpoint of a training whose last one it has not seen.
    #[error(
        "Evaluator::run: no checkpoint in {} for {:.1} s{}, and none there is marked as the last of the training; see whether it still runs, give Evaluator::patience more than a checkpoint takes, or mark the last one (runner::LAST)",
        folder.display(), waited.as_secs_f64(), after.as_ref().map_or(String::new(), |after| format!(" since {after}"))
    )]
    NoCheckpoint {
        /// The folder that was watched.
        folder: PathBuf,
        /// The latest one that was there; `None` where there was none.
        after: Option<String>,
        /// The time that was waited.
        waited: Duration,
    },
    /// A step of an optimizer with sharded state failed between the update of each worker's part of the state and the
    /// exchange of the new weights. No weight has changed on this worker, but its part of the state has. Steps and
    /// saves of the optimizer are refused until it is restored.
    #[error("{operation}: {reason}")]
    IncompleteState {
        /// The function that was called.
        operation: &'static str,
        /// The number of the step, of those made with this optimizer.
        step: u64,
        /// The place of the failure, and what to do.
        reason: String,
        /// The error of the step.
        #[source]
        source: Option<Box<Error>>,
    },
    /// The strategy cannot do this.
    #[error("{operation}: {strategy} does not support {what}; {advice}")]
    NotSupported {
        /// The function that was called.
        operation: &'static str,
        /// The kind of strategy.
        strategy: &'static str,
        /// The feature that the strategy lacks.
        what: &'static str,
        /// The advice: what to do instead.
        advice: &'static str,
    },
    /// A pass over a distributed dataset is at its end.
    #[error("{operation}: the pass is at its end; begin another, by iter() or Batches::begin()")]
    OutOfRange {
        /// The function that was called.
        operation: &'static str,
    },
    /// Tensors or nests don't match the operation.
    #[error("{operation}: {source}")]
    Tensor {
        /// The function that was called.
        operation: &'static str,
        /// The mismatch.
        #[source]
        source: distribute_tensor::Error,
    },
    /// candle refused.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// Input failed.
    #[error(transparent)]
    Data(#[from] distribute_data::Error),
    /// A checkpoint could not be saved, or what is there cannot be restored.
    #[error(transparent)]
    Checkpoint(#[from] distribute_checkpoint::Error),
    /// A job cannot be watched.
    #[error(transparent)]
    Monitor(#[from] distribute_monitor::Error),
    /// A summary for TensorBoard could not be written.
    #[error(transparent)]
    Summary(#[from] distribute_summary::Error),
    /// A parameter server refused a request or did not answer. Unless the server refused, the request may have been
    /// applied, on other servers as well.
    #[error("{operation}: {source}")]
    Server {
        /// The operation.
        operation: &'static str,
        /// The server, the request, and the reason.
        #[source]
        source: Box<distribute_ps_tables::ChannelError>,
    },
    /// A closure that was scheduled has failed, or workers are missing.
    #[error(transparent)]
    Coordinator(#[from] distribute_coordinator::Error),
    /// A partitioner or a placement was given something that it cannot take.
    #[error(transparent)]
    Params(Box<distribute_ps_tables::Error>),
    /// An optimizer's hyper-parameter is out of range.
    #[error(transparent)]
    Hyperparameter(#[from] distribute_optim::InvalidHyperparameter),
    /// An update rule refused a step.
    #[error(transparent)]
    Update(#[from] distribute_optim::UpdateError),
    /// The system refused a file or a thread.
    #[error("{operation}: {source}")]
    Io {
        /// The operation.
        operation: String,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The error of an operation that all replicas made together, of which each replica gets one.
    #[error("{0}")]
    Shared(Arc<Error>),
    /// A user error.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A program prints this that ends with the error, and some of it may be the words of another process.
        f.write_str(&distribute_log::plain_lines(&self.to_string()))
    }
}

impl From<ClusterError> for Error {
    fn from(error: ClusterError) -> Self {
        Error::Cluster(Box::new(error))
    }
}

impl From<distribute_ps_tables::Error> for Error {
    fn from(error: distribute_ps_tables::Error) -> Self {
        Error::Params(Box::new(error))
    }
}

/// A user error, so that closures and `main` can use `?`.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::other(error)
    }
}

impl From<JoinError> for Error {
    fn from(error: JoinError) -> Self {
        Error::Join(Box::new(error))
    }
}

impl Error {
    /// Wraps a user error, so that closures can return it.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Other(error.into())
    }

    /// An error of [`Parts`](Error::Parts) as one that happened within `segment` (`.1` or `[3]`) of a value.
    #[doc(hidden)]
    pub fn within(mut self, segment: impl fmt::Display) -> Self {
        if let Error::Parts { path, .. } = &mut self {
            *path = format!("{segment}{path}");
        }
        self
    }

    /// An error of [`Parts`](Error::Parts) as one about `argument` of `operation`.
    #[doc(hidden)]
    pub fn of_argument(mut self, called: &'static str, argument: &str) -> Self {
        if let Error::Parts { operation, path, .. } = &mut self {
            *operation = called;
            path.insert_str(0, argument);
        }
        self
    }

    /// The error of a worker, of which nothing is known but its number.
    #[doc(hidden)]
    pub fn worker_failed(worker: usize, source: Self) -> Self {
        Error::Worker { worker, process: None, source: Box::new(source) }
    }

    #[doc(hidden)]
    pub fn invalid(operation: &'static str, reason: impl Into<String>) -> Self {
        Error::InvalidArgument { operation, reason: reason.into() }
    }

    #[doc(hidden)]
    pub fn tensor(operation: &'static str) -> impl FnOnce(distribute_tensor::Error) -> Self {
        move |source| Error::Tensor { operation, source }
    }
}

impl From<Arc<Blame>> for Error {
    fn from(blame: Arc<Blame>) -> Self {
        Error::Collective(blame)
    }
}

impl From<distribute_tensor::Error> for Error {
    fn from(source: distribute_tensor::Error) -> Self {
        Error::Tensor { operation: "tensor operation", source }
    }
}

const PARTS_ADVICE: &str = "use values and models of the strategy that is given them";

fn located(process: &Option<Box<Process>>) -> String {
    process.as_ref().map(|process| format!(" ({process})")).unwrap_or_default()
}

fn local(replicas: usize) -> String {
    match replicas {
        1 => "is 1 local replica".into(),
        n => format!("are {n} local replicas"),
    }
}

/// The text of an error with the number of its step, unless it begins with that already, as errors of calls do.
fn in_step(step: u64, error: &Error) -> String {
    let text = error.to_string();
    let after = text.strip_prefix(&format!("step {step}")).filter(|_| matches!(error, Error::Collective(_)));
    if after.is_some_and(|rest| rest.starts_with([',', ':'])) { text } else { format!("step {step}: {text}") }
}

/// The error of a closure that panicked.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Panicked { message: message.unwrap_or_else(|| "without a message".into()) }
}
