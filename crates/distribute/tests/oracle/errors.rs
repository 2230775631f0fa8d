//! Kinds of errors, by which TensorFlow's exception classes are compared with this crate's errors.

use distribute::cluster::{ClusterError, Fault};
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{Error, data, tensor};
use distribute_coordinator as coordinator;
use distribute_coordinator::FailureKind;

/// The kind of mistake that an error reports.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    BadArgument,
    WrongContext,
    NotSupported,
    /// An exception that has no kind of its own, by the name of its class.
    Named(String),
}

/// An exception that the user's function in a case raises, by the name of its class.
#[derive(Debug)]
pub struct Raised(pub String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the user's {}", self.0)
    }
}

impl std::error::Error for Raised {}

/// Returns the error that a user's function would return to raise the exception `class`.
pub fn raise(class: &str) -> Error {
    Error::other(Raised(class.to_string()))
}

impl Kind {
    pub fn of_type(class: &str) -> Option<Kind> {
        Some(match class {
            "ValueError" | "TypeError" | "InvalidArgumentError" | "AssertionError" | "JSONDecodeError" => {
                Kind::BadArgument
            }
            "RuntimeError" => Kind::WrongContext,
            "NotImplementedError" => Kind::NotSupported,
            "CancelledError" | "OutOfRangeError" | "NotFoundError" | "IndexError" | "KeyError" => {
                Kind::Named(class.to_string())
            }
            _ => return None,
        })
    }

    /// Returns a TensorFlow class of this kind.
    pub fn class(&self) -> &str {
        match self {
            Kind::BadArgument => "ValueError",
            Kind::WrongContext => "RuntimeError",
            Kind::NotSupported => "NotImplementedError",
            Kind::Named(class) => class,
        }
    }

    /// Returns the kind of an error, or `None` for errors that no case may have, such as a time-out.
    pub fn of_error(error: &Error) -> Option<Kind> {
        match error.root_cause() {
            Error::Other(error) => Kind::of_type(&error.downcast_ref::<Raised>()?.0),
            Error::Params(error) => Kind::of_params(error),
            Error::Cluster(error) => Kind::of_cluster(error),
            Error::WrongContext { .. } | Error::MixedStrategies { .. } | Error::StaleContext { .. } => {
                Some(Kind::WrongContext)
            }
            Error::Collective(blame) => match blame.fault {
                Fault::Mismatch => Some(Kind::BadArgument),
                // TensorFlow calls it a RuntimeError that replicas make different numbers of calls.
                Fault::Returned => Some(Kind::WrongContext),
                _ => None,
            },
            Error::Tensor { source, .. } => match source {
                tensor::Error::LeafKind { found: "indexed slices", .. } => Some(Kind::NotSupported),
                // TensorFlow has an exception of its own where a variable is indexed.
                tensor::Error::Index { operation: "index", .. } => Some(Kind::Named("IndexError".into())),
                _ => Some(Kind::BadArgument),
            },
            // Row writes that the variable never supports are "not supported"; others need another context.
            Error::VariableAccess { operation, synchronization, aggregation, .. } => {
                let summed = matches!(aggregation, VariableAggregation::Sum | VariableAggregation::Mean);
                let never = *synchronization == VariableSynchronization::OnRead
                    || summed && matches!(*operation, "scatter_min" | "scatter_max" | "scatter_update");
                let rows = operation.starts_with("scatter_");
                Some(if rows && never { Kind::NotSupported } else { Kind::BadArgument })
            }
            Error::Data(error) => Kind::of_data(error),
            Error::NotSupported { .. } => Some(Kind::NotSupported),
            Error::OutOfRange { .. } => Some(Kind::Named("OutOfRangeError".into())),
            Error::Coordinator(coordinator::Error::Failed(failure)) => match failure.kind {
                FailureKind::InvalidArgument => Some(Kind::BadArgument),
                FailureKind::EndOfData => Some(Kind::Named("OutOfRangeError".into())),
                FailureKind::Cancelled => Some(Kind::Named("CancelledError".into())),
                _ => None,
            },
            Error::InvalidArgument { .. } | Error::Device { .. } => Some(Kind::BadArgument),
            _ => None,
        }
    }

    pub fn of_cluster(error: &ClusterError) -> Option<Kind> {
        match error {
            ClusterError::Duplicate { .. } => Some(Kind::Named("KeyError".into())),
            // What the scheduler left does not fit what was asked for.
            ClusterError::NotSet { .. } | ClusterError::TaskCount { .. } | ClusterError::Gpus { .. } => {
                Some(Kind::WrongContext)
            }
            ClusterError::Malformed(_)
            | ClusterError::Address { .. }
            | ClusterError::NoSuchJob { .. }
            | ClusterError::NoSuchTask { .. }
            | ClusterError::DisallowedJob { .. }
            | ClusterError::DisallowedTask { .. }
            | ClusterError::NotInCluster { .. }
            | ClusterError::Several { .. }
            | ClusterError::NoSuchIndex { .. }
            | ClusterError::NoRank { .. }
            | ClusterError::NoTask { .. }
            | ClusterError::NoResolver => Some(Kind::BadArgument),
            _ => None,
        }
    }

    fn of_params(error: &distribute_ps_tables::Error) -> Option<Kind> {
        use distribute_ps_tables::Error;
        match error {
            // One kind of mistake has two exceptions there.
            Error::PartitionAxis { partitioner, .. } if *partitioner != "MinSizePartitioner" => {
                Some(Kind::Named("IndexError".into()))
            }
            Error::PartitionAxis { .. }
            | Error::PartitionerParameter { .. }
            | Error::Partitions { .. }
            | Error::Id { .. } => Some(Kind::BadArgument),
            _ => None,
        }
    }

    fn of_data(error: &data::Error) -> Option<Kind> {
        match error {
            data::Error::Unshardable { .. } => Some(Kind::Named("NotFoundError".into())),
            data::Error::NotBatched { .. }
            | data::Error::NotDivisible { .. }
            | data::Error::TooFewFiles { .. }
            | data::Error::NoEmptyBatch { .. }
            | data::Error::Parameter { .. } => Some(Kind::BadArgument),
            // The error of the user's function.
            data::Error::DatasetFunction { cause, .. } => Kind::of_error(cause.downcast_ref::<Error>()?),
            _ => None,
        }
    }
}
