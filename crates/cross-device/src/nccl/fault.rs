//! Why NCCL cannot sum.

use distribute_base::{DeviceName, Error};
use std::time::Duration;

/// The file of NCCL, by which the system's loader finds it.
pub(super) const FILE: &str = "libnccl.so.2";

/// Why NCCL cannot sum.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The library is not there.
    #[error(
        "NcclAllReduce sums by NCCL between GPUs, and NCCL cannot be loaded: {reason}. {FILE} was looked for in LD_LIBRARY_PATH ({searched}) \
         and where this system has its libraries. Install it: apt-get install libnccl2, from NVIDIA's packages or Debian's; or pip install \
         nvidia-nccl-cu12 (of CUDA 13: nvidia-nccl-cu13), and let LD_LIBRARY_PATH name that wheel's folder nvidia/nccl/lib. Without NCCL there \
         are ReductionToOneDevice and HierarchicalCopyAllReduce"
    )]
    Missing {
        /// What the system's loader said.
        reason: String,
        /// What LD_LIBRARY_PATH is.
        searched: String,
    },
    /// The library is too old.
    #[error(
        "NCCL {found} is installed, and NcclAllReduce needs {least} or later: install a later libnccl2, or nvidia-nccl-cu12 by pip"
    )]
    TooOld {
        /// What is installed.
        found: String,
        /// The earliest release that will do.
        least: &'static str,
    },
    /// The GPUs cannot be linked.
    #[error("NCCL cannot link these GPUs: {0}; NCCL_DEBUG=INFO in the environment says what it tries")]
    Link(CallError),
    /// A sum has failed, and it cannot be known how far the GPUs have come.
    #[error(
        "NCCL cannot sum: {0}. Its communicators of these GPUs are given up: start the program again from its last checkpoint; \
         NCCL_DEBUG=WARN in the environment says more"
    )]
    Sum(CallError),
    /// A call has not ended in time.
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
    /// Another sum of this process is not through.
    #[error(
        "NCCL does one thing at a time in a process, and has linked GPUs or summed for another run for {waited:?}; raise the timeout of \
         the strategy, of which NCCL has half, if that is too short"
    )]
    Busy {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The parts are none of which a sum can be made.
    #[error("the parts of a sum differ: {0}")]
    Parts(String),
    /// candle refused memory.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Fault {
    /// The error of a call for these devices.
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
    /// The function.
    pub(super) call: &'static str,
    /// What the library said.
    pub(super) reason: String,
}

impl CallError {
    /// Of a call that these GPUs have not ended.
    pub(super) fn late(call: &'static str, gpus: &[usize], waited: Duration) -> Self {
        let names = gpus.iter().map(|gpu| format!("GPU {gpu}")).collect::<Vec<_>>();
        Self { call, reason: format!("{} has not done it within {waited:?}", names.join(", ")) }
    }
}
