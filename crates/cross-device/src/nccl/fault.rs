//! Errors of sums by NCCL.

use distribute_base::{DeviceName, Error};
use distribute_nccl_library::{CallError, LoadError};
use std::time::Duration;

/// An error of a sum by NCCL.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The library cannot be loaded, or is too old.
    #[error(
        "NcclAllReduce sums by NCCL between GPUs. {0}. Without NCCL there are ReductionToOneDevice and HierarchicalCopyAllReduce"
    )]
    Load(#[from] LoadError),
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

/// Creates the error of a call that these GPUs have not completed.
pub(super) fn late(call: &'static str, gpus: &[usize], waited: Duration) -> CallError {
    let names = gpus.iter().map(|gpu| format!("GPU {gpu}")).collect::<Vec<_>>();
    CallError { call, reason: format!("{} has not done it within {waited:?}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_nccl_library::Nccl;

    // The texts are those of the loader of Linux.
    #[cfg(target_os = "linux")]
    #[test]
    fn without_the_library_an_error_says_what_to_install() {
        let fault = Fault::from(Nccl::load("libnccl-that-is-not-there.so.2").err().unwrap());
        assert!(matches!(fault, Fault::Load(LoadError::Missing { .. })), "{fault}");
        let error = fault.on(&[DeviceName::gpu(0), DeviceName::gpu(1)]);
        assert!(matches!(error, Error::Device { .. }), "{error}");
        let text = error.to_string();
        for part in [
            "device \"/job:localhost/replica:0/task:0/device:GPU:0, /job:localhost/replica:0/task:0/device:GPU:1\"",
            // The loader's error, and the searched paths.
            "libnccl-that-is-not-there.so.2: cannot open shared object file",
            "NCCL 2.14 or later",
            "libnccl.so.2 was looked for in LD_LIBRARY_PATH (",
            "apt-get install libnccl2",
            "pip install nvidia-nccl-cu12",
            "nvidia-nccl-cu13",
            "nvidia/nccl/lib",
            // The alternatives.
            "ReductionToOneDevice",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn a_release_that_is_too_old_is_refused() {
        let text = Fault::from(LoadError::TooOld { found: "2.13.4".into() }).to_string();
        assert!(text.contains("NcclAllReduce sums by NCCL between GPUs. NCCL 2.13.4 is installed, and 2.14 or later is needed"), "{text}");
    }
}
