//! Errors of NCCL, and of loading it.

use crate::{FILE, LEAST};

/// The reason that NCCL cannot be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library is not there, or is another one.
    #[error("{FILE} cannot be loaded: {reason}")]
    Missing {
        /// The message of the system's loader.
        reason: String,
    },
    /// The library is too old.
    #[error("NCCL {found} is installed, and {} or later is needed", LEAST.0)]
    TooOld {
        /// The release that is installed.
        found: String,
    },
    /// The library does not say its release.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A call of NCCL or CUDA that has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct CallError {
    /// The function.
    pub call: &'static str,
    /// The message of the library.
    pub reason: String,
}
