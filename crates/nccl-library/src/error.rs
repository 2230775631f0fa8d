//! The errors of calling and loading NCCL.

use crate::{FILE, LEAST};

/// An error that prevents a process from calling NCCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The library is missing, or the file is a different library.
    #[error(
        "NCCL cannot be loaded: {reason}. {FILE} was searched for in LD_LIBRARY_PATH ({searched}) and in the library \
         folders of this system. Install NCCL {} or later: apt-get install libnccl2, from NVIDIA's packages or \
         Debian's; or pip install nvidia-nccl-cu12 (of CUDA 13: \
         nvidia-nccl-cu13), and add that wheel's folder nvidia/nccl/lib to LD_LIBRARY_PATH",
        LEAST.0
    )]
    Missing {
        /// The error message from the dynamic loader.
        reason: String,
        /// The value of `LD_LIBRARY_PATH`.
        searched: String,
    },
    /// The library is too old.
    #[error(
        "NCCL {found} is installed, but {} or later is needed: install a later libnccl2, or nvidia-nccl-cu12 with pip",
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

/// A call to NCCL or CUDA that has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct CallError {
    /// The name of the function.
    pub call: &'static str,
    /// The error message of the library.
    pub reason: String,
}
