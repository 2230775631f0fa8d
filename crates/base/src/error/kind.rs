//! The kinds of errors. A kind determines how a program should react.

use super::Error;
use super::cause::{chain, own_errors};
use candle_core::Error as Candle;
use distribute_checkpoint::Error as Checkpoint;
use distribute_cluster::{Blame, Fault};
use distribute_coordinator::{Error as Coordinator, FailureKind};
use distribute_data::Error as Data;
#[cfg(feature = "monitor")]
use distribute_monitor::Error as Monitor;
use distribute_net::JoinError;
use distribute_net::handshake::Reason;
use distribute_ps_tables::{ChannelError, RefusalKind};
use distribute_summary::Error as Summary;
use std::error::Error as StdError;
use std::fmt;

/// The kind of an [`Error`], which determines how a program should react; see [`Error::kind`].
///
/// More kinds may be added, and an error may be assigned to a new kind that describes it better.
///
/// ```
/// use distribute::{Error, ErrorKind, prelude::*};
///
/// let strategy = MirroredStrategy::cpus(2)?;
/// let result = strategy.run((), |ctx, ()| match ctx.replica_id_in_sync_group() {
///     0 => Ok(()),
///     _ => Err(Error::other("label 12 is outside of 0..10")),
/// });
/// let error = result.unwrap_err();
/// let exit_code = match error.kind() {
///     ErrorKind::PeerFailed | ErrorKind::TimedOut | ErrorKind::ServerUnavailable => 75, // a restart may help
///     ErrorKind::Stale => 0,                                                            // nothing is left to do
///     _ => 1,
/// };
/// assert_eq!((error.kind(), exit_code), (ErrorKind::User, 1));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program has a mistake: a wrong argument, context, shape or type, or a call that the strategy does not
    /// support. The same program will fail again. Fix it as the message describes.
    Usage,
    /// The environment, the cluster, an address or the credentials are wrong, or the tasks of the job run
    /// different programs. Fix the configuration of the job.
    Configuration,
    /// Replicas or workers made different calls, or have different settings, models or data. Make the same
    /// calls on all of them; look for branches that depend on the replica id or on data. [`Error::blame`] may
    /// name the culprits.
    Disagreement,
    /// Another replica or worker failed, or its connection was lost. See the error of that worker. Re-form
    /// the group with `Training::recover`, or restart all workers from a checkpoint.
    PeerFailed,
    /// New workers are waiting to join, and the step has not begun. Pass the error to `Training::recover`, which admits
    /// the workers.
    WorkersWaiting,
    /// A replica or a worker did not arrive, a function did not return, or a checkpoint was not complete before the
    /// deadline. Find out what the operation was waiting for, or set a longer timeout. `Training::recover` continues
    /// without a worker that hangs.
    TimedOut,
    /// A parameter server cannot be reached, is overloaded, or cannot store a change. See the server's log. The step
    /// can be retried when the server is available again. Unless the server rejected the request, it may have been
    /// applied.
    ServerUnavailable,
    /// The job continues or has finished without this process, which was replaced or joined too late. Exit.
    Stale,
    /// The state of the training run is incomplete or differs between workers. Restore the last checkpoint on
    /// all workers.
    RestoreNeeded,
    /// A file or an element does not have the contents that the program expects: it is damaged, malformed or
    /// of a different shape. Get the file again, skip the records, or restore an older checkpoint.
    Data,
    /// An operation of the operating system on a file, a thread, a socket or memory failed. Check paths,
    /// permissions, disks and limits.
    Io,
    /// A device does not exist, is not supported by this build, or has failed.
    Device,
    /// A loss or a gradient is NaN or infinite. Find the cause in the step, use a lower learning rate, or
    /// skip such steps.
    NotFinite,
    /// A pass over a dataset has ended. Begin another one.
    EndOfData,
    /// A closure was cancelled because another one failed or the coordinator was dropped. Schedule it again.
    Cancelled,
    /// A function of the program panicked. The message and location are on stderr. Fix the program.
    Panicked,
    /// A function of the program returned its own error. That error is the source.
    User,
}

impl ErrorKind {
    /// Returns the name of the kind, in lower-case words.
    fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Configuration => "configuration",
            Self::Disagreement => "disagreement",
            Self::PeerFailed => "peer failed",
            Self::WorkersWaiting => "workers waiting",
            Self::TimedOut => "timed out",
            Self::ServerUnavailable => "server unavailable",
            Self::Stale => "stale",
            Self::RestoreNeeded => "restore needed",
            Self::Data => "data",
            Self::Io => "io",
            Self::Device => "device",
            Self::NotFinite => "not finite",
            Self::EndOfData => "end of data",
            Self::Cancelled => "cancelled",
            Self::Panicked => "panicked",
            Self::User => "user",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Error {
    /// Returns the kind of the error, which determines how a program should react.
    ///
    /// The layers that `run` adds do not change the kind. If the program's own error wraps an error of this crate, the
    /// wrapped error determines the kind. Otherwise an error of candle, of a dataset or of the operating system among
    /// its sources determines it; without one, the kind is [`User`](ErrorKind::User).
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Replica { source, .. } => source.kind(),
            Error::Shared(source) => source.kind(),
            Error::Failed { kind, .. } => *kind,
            Error::Worker { .. } => ErrorKind::PeerFailed,
            Error::Cluster(_) => ErrorKind::Configuration,
            Error::Join(error) => of_join(error),
            Error::Panicked { .. } => ErrorKind::Panicked,
            Error::Collective(blame) => of_blame(blame),
            Error::EmptyPiece { .. }
            | Error::WrongContext { .. }
            | Error::VariableAccess { .. }
            | Error::MixedStrategies { .. }
            | Error::Parts { .. }
            | Error::StaleContext { .. }
            | Error::InvalidArgument { .. }
            | Error::MissingGradients { .. }
            | Error::NotSupported { .. }
            | Error::Tensor { .. }
            | Error::Params(_)
            | Error::Hyperparameter(_) => ErrorKind::Usage,
            Error::Device { .. } => ErrorKind::Device,
            Error::NotFinite { .. } => ErrorKind::NotFinite,
            Error::Drift { .. } | Error::IncompleteState { .. } => ErrorKind::RestoreNeeded,
            Error::WorkersWaiting { .. } => ErrorKind::WorkersWaiting,
            Error::UnusedSpare { .. } => ErrorKind::Stale,
            Error::GracePeriod { .. } | Error::NoCheckpoint { .. } => ErrorKind::TimedOut,
            Error::OutOfRange { .. } => ErrorKind::EndOfData,
            Error::Candle(error) => of_candle(error),
            Error::Data(error) => of_data(error),
            Error::Checkpoint(error) => of_checkpoint(error),
            #[cfg(feature = "hub")]
            Error::Hub(error) => of_hub(error),
            #[cfg(feature = "monitor")]
            Error::Monitor(error) => of_monitor(error),
            Error::Summary(error) => of_summary(error),
            Error::Server { source, .. } => of_channel(source),
            Error::Coordinator(error) => of_coordinator(error),
            Error::Io { .. } => ErrorKind::Io,
            Error::Other(error) => of_user(&**error),
        }
    }
}

fn of_blame(blame: &Blame) -> ErrorKind {
    match blame.fault {
        Fault::Mismatch | Fault::Returned => ErrorKind::Disagreement,
        Fault::Failed | Fault::Lost | Fault::Corrupted => ErrorKind::PeerFailed,
        Fault::TimedOut => ErrorKind::TimedOut,
    }
}

fn of_join(error: &JoinError) -> ErrorKind {
    match error {
        JoinError::Bind { .. } | JoinError::System(_) => ErrorKind::Io,
        JoinError::Lost { .. } | JoinError::Leader { .. } => ErrorKind::PeerFailed,
        JoinError::Deadline { .. } | JoinError::Minority { .. } => ErrorKind::TimedOut,
        JoinError::Refused { refusal, .. } | JoinError::OtherRefused { refusal, .. } => {
            match refusal.reason {
                Reason::Ended | Reason::Generation | Reason::Complete => ErrorKind::Stale,
                Reason::Late | Reason::Crowded => ErrorKind::TimedOut,
                _ => ErrorKind::Configuration,
            }
        }
        _ => ErrorKind::Configuration,
    }
}

fn of_candle(error: &Candle) -> ErrorKind {
    match error {
        Candle::Context { inner, .. }
        | Candle::WithPath { inner, .. }
        | Candle::WithBacktrace { inner, .. } => of_candle(inner),
        Candle::WrappedContext { wrapped, .. } => of_user(&**wrapped),
        Candle::Io(_) => ErrorKind::Io,
        Candle::Cuda(_)
        | Candle::Metal(_)
        | Candle::NotCompiledWithCudaSupport
        | Candle::NotCompiledWithMetalSupport => ErrorKind::Device,
        Candle::Npy(_)
        | Candle::Zip(_)
        | Candle::SafeTensor(_)
        | Candle::UnsupportedSafeTensorDtype(_)
        | Candle::CannotFindTensor { .. } => ErrorKind::Data,
        // The error inside is only a text.
        Candle::Wrapped(_) => ErrorKind::User,
        _ => ErrorKind::Usage,
    }
}

fn of_data(error: &Data) -> ErrorKind {
    match error {
        Data::Io { .. } | Data::NoFiles { .. } | Data::Write { .. } => ErrorKind::Io,
        Data::Memory { .. } | Data::Thread { .. } => ErrorKind::Io,
        Data::Damaged { .. } | Data::Column { .. } | Data::Record { .. } | Data::Example { .. } => {
            ErrorKind::Data
        }
        Data::Csv { .. } | Data::NoColumn { .. } | Data::Cache { .. } | Data::Position { .. } => {
            ErrorKind::Data
        }
        Data::EmptyPasses { .. }
        | Data::Stack { .. }
        | Data::Spec { .. }
        | Data::Pad { .. }
        | Data::Choice { .. }
        | Data::Sequence { .. } => ErrorKind::Data,
        Data::OtherData { .. } => ErrorKind::Disagreement,
        Data::GeneratorBusy { .. } => ErrorKind::TimedOut,
        Data::Panicked { .. } | Data::ThreadDied { .. } => ErrorKind::Panicked,
        Data::Function { cause, .. } | Data::Generator { cause, .. } | Data::Inner { cause, .. } => {
            of_user(&**cause)
        }
        Data::DatasetFunction { cause, .. } | Data::Piece { cause, .. } => of_user(&**cause),
        _ => ErrorKind::Usage,
    }
}

fn of_checkpoint(error: &Checkpoint) -> ErrorKind {
    match error {
        Checkpoint::Io { .. } | Checkpoint::Busy { .. } | Checkpoint::Removal { .. } => ErrorKind::Io,
        Checkpoint::NoCheckpoint { .. } | Checkpoint::Damaged { .. } | Checkpoint::Version { .. } => {
            ErrorKind::Data
        }
        Checkpoint::Index { .. } | Checkpoint::UnknownName { .. } | Checkpoint::Rows { .. } => {
            ErrorKind::Data
        }
        Checkpoint::Source { source, .. } | Checkpoint::Interrupted { source } => of_user(&**source),
        Checkpoint::Background { source, .. } | Checkpoint::Earlier { source, .. } => of_checkpoint(source),
        Checkpoint::Unfinished { .. } => ErrorKind::TimedOut,
        Checkpoint::Panicked { .. } => ErrorKind::Panicked,
        _ => ErrorKind::Usage,
    }
}

#[cfg(feature = "hub")]
fn of_hub(error: &distribute_hub::Error) -> ErrorKind {
    use distribute_hub::Error as Hub;
    match error {
        Hub::Invalid { what, .. } if !what.starts_with("HF_") => ErrorKind::Usage,
        Hub::Invalid { .. } | Hub::Offline { .. } => ErrorKind::Configuration,
        // The server has a problem, or too many requests.
        Hub::Status { status: 408 | 429 | 500.., .. } => ErrorKind::Io,
        Hub::Status { .. } => ErrorKind::Configuration,
        Hub::Response { .. } | Hub::TooLarge { .. } | Hub::Hash { .. } | Hub::Index { .. } => ErrorKind::Data,
        Hub::Busy { .. } => ErrorKind::TimedOut,
        _ => ErrorKind::Io,
    }
}

#[cfg(feature = "monitor")]
fn of_monitor(error: &Monitor) -> ErrorKind {
    match error {
        Monitor::Network { .. } => ErrorKind::Configuration,
        _ => ErrorKind::Io,
    }
}

fn of_summary(error: &Summary) -> ErrorKind {
    match error {
        Summary::NotFinite { .. } => ErrorKind::NotFinite,
        Summary::Tag { .. } => ErrorKind::Usage,
        _ => ErrorKind::Io,
    }
}

fn of_channel(error: &ChannelError) -> ErrorKind {
    match error {
        ChannelError::Refused { refusal, .. } => match refusal.kind {
            RefusalKind::NotFinite => ErrorKind::NotFinite,
            RefusalKind::Stale => ErrorKind::Stale,
            RefusalKind::Lost => ErrorKind::RestoreNeeded,
            RefusalKind::NoMemory | RefusalKind::Storage | RefusalKind::Busy | RefusalKind::Expired => {
                ErrorKind::ServerUnavailable
            }
            _ => ErrorKind::Usage,
        },
        ChannelError::TooLarge { .. } => ErrorKind::Usage,
        ChannelError::Answer { .. } => ErrorKind::Configuration,
        _ => ErrorKind::ServerUnavailable,
    }
}

fn of_coordinator(error: &Coordinator) -> ErrorKind {
    match error {
        Coordinator::Failed(failure) => match failure.kind {
            FailureKind::InvalidArgument | FailureKind::TooLarge => ErrorKind::Usage,
            FailureKind::EndOfData => ErrorKind::EndOfData,
            FailureKind::Panicked => ErrorKind::Panicked,
            FailureKind::Cancelled => ErrorKind::Cancelled,
            FailureKind::Server => ErrorKind::ServerUnavailable,
            FailureKind::UnknownFunction => ErrorKind::Configuration,
            FailureKind::TimedOut => ErrorKind::TimedOut,
            FailureKind::WorkersLost => ErrorKind::PeerFailed,
            _ => ErrorKind::User,
        },
        Coordinator::NotConnected { refused, .. } | Coordinator::NoWorkers { refused, .. } => match refused {
            Some(FailureKind::Superseded) => ErrorKind::Stale,
            Some(FailureKind::UnknownFunction) => ErrorKind::Configuration,
            _ => ErrorKind::PeerFailed,
        },
        Coordinator::TimedOut { .. } => ErrorKind::TimedOut,
        Coordinator::Dropped { .. } => ErrorKind::Cancelled,
        Coordinator::Thread { .. } => ErrorKind::Io,
        _ => ErrorKind::Usage,
    }
}

/// Returns the kind of the program's own error. The first error of this crate among the error and its sources
/// determines the kind; otherwise the first error of candle, of a dataset or of the operating system.
fn of_user(error: &(dyn StdError + 'static)) -> ErrorKind {
    if let Some(own) = own_errors(error).next() {
        return own.kind();
    }
    let known = chain(error).find_map(|error| {
        let candle = error.downcast_ref().map(of_candle);
        let data = error.downcast_ref().map(of_data);
        candle.or(data).or(error.is::<std::io::Error>().then_some(ErrorKind::Io))
    });
    known.unwrap_or(ErrorKind::User)
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Fingerprint, Operation};
    use distribute_coordinator::Failure;
    use distribute_ps_tables::Refusal;
    use std::panic::Location;
    use std::sync::Arc;

    fn replica(source: Error) -> Error {
        Error::Replica { replica: 1, device: "cpu:0".into(), step: 7, source: Box::new(source) }
    }

    fn in_candle(error: Error) -> Candle {
        Candle::WrappedContext { wrapped: Box::new(error), context: "forward".into() }
    }

    fn refused(kind: RefusalKind) -> Error {
        let refusal = Refusal::new(kind, "no");
        let source = Box::new(ChannelError::Refused { server: "ps 0".into(), refusal });
        Error::Server { operation: "push", source }
    }

    fn failed(kind: FailureKind) -> Error {
        Error::Coordinator(Coordinator::Failed(Failure::new(kind, "no")))
    }

    #[test]
    fn errors_can_be_sent_between_threads() {
        fn check<E: StdError + Send + Sync + 'static>() {}
        check::<Error>();
        check::<Checkpoint>();
        check::<Coordinator>();
        check::<Data>();
        #[cfg(feature = "monitor")]
        check::<Monitor>();
        check::<Summary>();
        check::<JoinError>();
        check::<ChannelError>();
        check::<distribute_cluster::ClusterError>();
        check::<distribute_ps_tables::Error>();
        check::<distribute_tensor::Error>();
    }

    #[test]
    fn the_reason_for_which_workers_reject_a_coordinator_determines_the_kind() {
        for (refused, kind) in [
            (Some(FailureKind::Superseded), ErrorKind::Stale),
            (Some(FailureKind::UnknownFunction), ErrorKind::Configuration),
            (None, ErrorKind::PeerFailed),
        ] {
            let (operation, workers, missing) = ("ClusterCoordinator::new", 1, Vec::new());
            let error = Coordinator::NotConnected { operation, workers, missing, refused };
            assert_eq!(Error::Coordinator(error).kind(), kind);
        }
    }

    #[test]
    fn layers_do_not_change_the_kind() {
        let cause = || Error::NotFinite {
            operation: "minimize",
            replica: 1,
            step: 7,
            variable: None,
            reason: "NaN".into(),
        };
        for error in [
            cause(),
            replica(cause()),
            Error::Shared(Arc::new(cause())),
            replica(Error::other(cause())),
            Error::other(in_candle(cause())),
            Error::Candle(in_candle(cause()).context("a layer")),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotFinite, "{error}");
        }
    }

    #[cfg(feature = "hub")]
    #[test]
    fn a_refusal_of_the_hub_is_no_temporary_problem() {
        use distribute_hub::Error as Hub;
        let status = |status| {
            let (message, advice) = (String::new(), String::new());
            Error::from(Hub::Status { url: "u".into(), status, message, retry_after: None, advice })
        };
        for (codes, kind) in [([401, 403, 404], ErrorKind::Configuration), ([429, 500, 503], ErrorKind::Io)] {
            assert!(codes.into_iter().all(|code| status(code).kind() == kind));
        }
        let invalid =
            |what| Error::from(Hub::Invalid { what, value: "..".into(), reason: "no".into() }).kind();
        assert_eq!(invalid("the file"), ErrorKind::Usage);
        assert_eq!(invalid("HF_ENDPOINT"), ErrorKind::Configuration);
        let busy = Hub::Busy { lock: "l".into(), waited: std::time::Duration::ZERO };
        assert_eq!(Error::from(busy).kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_user_error_has_the_kind_of_its_cause() {
        let file = || std::io::Error::other("no space");
        let data = || Data::Io { path: "a.csv".into(), source: file() };
        for (error, kind) in [
            (Error::other("a label of 12"), ErrorKind::User),
            (Error::other(file()), ErrorKind::Io),
            (file().into(), ErrorKind::Io),
            (Error::Data(data()), ErrorKind::Io),
            (Error::other(data()), ErrorKind::Io),
            (
                Error::Data(Data::Inner { operation: "flat_map", index: 3, cause: Box::new(data()) }),
                ErrorKind::Io,
            ),
            (Error::other(candle_core::Error::Io(file())), ErrorKind::Io),
            (Error::other(candle_core::Error::EmptyTensor { op: "cat" }), ErrorKind::Usage),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    #[test]
    fn a_caller_can_tell_what_to_retry_restore_or_leave() {
        let call = Fingerprint::new(Operation::Run, "", Location::caller());
        let lost = Error::Collective(Arc::new(Blame::failed(1, 2, &call)));
        let torn = Error::IncompleteState {
            operation: "minimize",
            step: 1,
            reason: "half".into(),
            source: Some(Box::new(Error::Collective(Arc::new(Blame::failed(1, 2, &call))))),
        };
        for (error, kind) in [
            (lost, ErrorKind::PeerFailed),
            (Error::worker_failed(1, Error::other("no such file")), ErrorKind::PeerFailed),
            (Error::WorkersWaiting { step: 3, waiting: 1 }, ErrorKind::WorkersWaiting),
            (replica(torn), ErrorKind::RestoreNeeded),
            (refused(RefusalKind::Stale), ErrorKind::Stale),
            (Error::UnusedSpare { operation: "Training::new" }, ErrorKind::Stale),
            (refused(RefusalKind::Lost), ErrorKind::RestoreNeeded),
            (refused(RefusalKind::Storage), ErrorKind::ServerUnavailable),
            (refused(RefusalKind::Argument), ErrorKind::Usage),
            (failed(FailureKind::Server), ErrorKind::ServerUnavailable),
            (failed(FailureKind::EndOfData), ErrorKind::EndOfData),
            (failed(FailureKind::Function), ErrorKind::User),
            (Error::OutOfRange { operation: "next" }, ErrorKind::EndOfData),
            (Error::invalid("run", "0 replicas"), ErrorKind::Usage),
            (Error::failed(ErrorKind::TimedOut, "ready", "not within 5 s"), ErrorKind::TimedOut),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
