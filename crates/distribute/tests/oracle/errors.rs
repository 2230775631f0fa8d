//! TensorFlow's exception classes and our errors, as kinds that both know.

use distribute::Error;
use distribute::cluster::Fault;
use distribute::tensor;

/// What kind of mistake an error tells of.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    BadArgument,
    WrongContext,
    NotSupported,
    /// An exception that means what its name says.
    Named(String),
}

/// An exception that the case's own function raises.
#[derive(Debug)]
pub struct Raised(pub String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the user's {}", self.0)
    }
}

impl std::error::Error for Raised {}

/// The error of a user's function.
pub fn raise(class: &str) -> Error {
    Error::other(Raised(class.to_string()))
}

impl Kind {
    pub fn of_type(class: &str) -> Option<Kind> {
        Some(match class {
            "ValueError" | "TypeError" | "InvalidArgumentError" | "AssertionError" => Kind::BadArgument,
            "RuntimeError" => Kind::WrongContext,
            "NotImplementedError" => Kind::NotSupported,
            "CancelledError" | "OutOfRangeError" | "NotFoundError" | "IndexError" | "KeyError" => {
                Kind::Named(class.to_string())
            }
            _ => return None,
        })
    }

    /// None for errors that no case may give, such as one that came too late.
    pub fn of_error(error: &Error) -> Option<Kind> {
        match error.root_cause() {
            Error::Other(error) => Kind::of_type(&error.downcast_ref::<Raised>()?.0),
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
                _ => Some(Kind::BadArgument),
            },
            Error::InvalidArgument { .. } | Error::Device { .. } => Some(Kind::BadArgument),
            _ => None,
        }
    }
}
