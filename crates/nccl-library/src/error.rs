//! Errors of NCCL, and of loading it.

use crate::{FILE, LEAST};

/// An error that prevents calls of NCCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The library is missing, or is another one.
    #[error(
        "NCCL cannot be loaded: {reason}. {FILE} was looked for in LD_LIBRARY_PATH ({searched}) and where this system has its libraries. Install \
         NCCL {} or later: apt-get install libnccl2, from NVIDIA's packages or Debian's; or pip install nvidia-nccl-cu12 (of CUDA 13: \
         nvidia-nccl-cu13), and let LD_LIBRARY_PATH name that wheel's folder nvidia/nccl/lib",
        LEAST.0
    )]
    Missing {
        /// The message of the system's loader.
        reason: String,
        /// The value of `LD_LIBRARY_PATH`.
        searched: String,
    },
    /// The library is too old.
    #[error(
        "NCCL {found} is installed, and {} or later is needed: install a later libnccl2, or nvidia-nccl-cu12 by pip",
        LEAST.0
    )]
    TooOld {
        /// The release that is installed.
        found: String,
    },
    /// The library does not report its release.
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
