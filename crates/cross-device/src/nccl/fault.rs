//! Errors of sums by NCCL.

use distribute_base::{DeviceName, Error};
use std::time::Duration;

/// The file name of NCCL, for the system's loader.
pub(super) const FILE: &str = "libnccl.so.2";

/// An error of a sum by NCCL.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The library cannot be loaded.
    #[error(
        "NcclAllReduce sums by NCCL between GPUs, and NCCL cannot be loaded: {reason}. {FILE} was looked for in LD_LIBRARY_PATH ({searched}) \
         and where this system has its libraries. Install it: apt-get install libnccl2, from NVIDIA's packages or Debian's; or pip install \
         nvidia-nccl-cu12 (of CUDA 13: nvidia-nccl-cu13), and let LD_LIBRARY_PATH name that wheel's folder nvidia/nccl/lib. Without NCCL there \
         are ReductionToOneDevice and HierarchicalCopyAllReduce"
    )]
    Missing {
        /// The error of the system's loader.
        reason: String,
        /// The value of LD_LIBRARY_PATH.
        searched: String,
    },
    /// The library is too old.
    #[error(
        "NCCL {found} is installed, and NcclAllReduce needs {least} or later: install a later libnccl2, or nvidia-nccl-cu12 by pip"
    )]
    TooOld {
        /// The installed release.
        found: String,
        /// The minimum release.
        least: &'static str,
    },
    /// The GPUs cannot be linked.
    #[error("NCCL cannot link these GPUs: {0}; NCCL_DEBUG=INFO in the environment says what it tries")]
    Link(CallError),
    /// A sum has failed, and the progress of the GPUs is unknown.
    #[error(
        "NCCL cannot sum: {0}. Its communicators of these GPUs are given up: start the program again from its last checkpoint; \
         NCCL_DEBUG=WARN in the environment says more"
    )]
    Sum(CallError),
    /// A call has timed out.
    #[error(
        "NCCL has not ended a call in time: {0}. Its communicators of these GPUs are given up: a GPU, its driver or what links it hangs; \
         nvidia-smi and lines with Xid in the kernel's log (dmesg) say which. Start the program again from its last checkpoint. Where NCCL \
         only takes longer, raise the timeout of the strategy, of which it has half; NCCL_DEBUG=INFO in the environment says what it waits \
         for"
    )]
    Late(CallError),
    /// An earlier call has failed.
    #[error(
        "NCCL was given up on these GPUs, since an earlier call has failed: {0}; start the program again from its last checkpoint"
    )]
    GivenUp(CallError),
    /// Another sum of this process is still running.
    #[error(
        "NCCL does one thing at a time in a process, and has linked GPUs or summed for another run for {waited:?}; raise the timeout of \
         the strategy, of which NCCL has half, if that is too short"
    )]
    Busy {
        /// The time waited.
        waited: Duration,
    },
    /// The parts cannot be summed.
    #[error("the parts of a sum differ: {0}")]
    Parts(String),
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Fault {
    /// Converts the error for a call on these devices.
    pub(super) fn on(self, devices: &[DeviceName]) -> Error {
        match self {
            Fault::Candle(error) => Error::Candle(error),
            fault => {
                let names = devices.iter().map(ToString::to_string).collect::<Vec<_>>();
                Error::Device { name: names.join(", "), reason: fault.to_string() }
            }
        }
    }
}

/// A call of NCCL or CUDA that has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub(super) struct CallError {
    /// The name of the function.
    pub(super) call: &'static str,
    /// The error of the library.
    pub(super) reason: String,
}

impl CallError {
    /// Creates the error of a call that these GPUs have not completed.
    pub(super) fn late(call: &'static str, gpus: &[usize], waited: Duration) -> Self {
        let names = gpus.iter().map(|gpu| format!("GPU {gpu}")).collect::<Vec<_>>();
        Self { call, reason: format!("{} has not done it within {waited:?}", names.join(", ")) }
    }
}
