//! Errors of NCCL's sums.

use distribute_base::{DeviceName, Error};
use distribute_nccl_library::{CallError, LoadError};
use std::time::Duration;

/// An error of a sum with NCCL.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The library cannot be loaded, or is too old.
    #[error(
        "NcclAllReduce needs NCCL to sum between GPUs. {0}. Without NCCL, use ReductionToOneDevice or HierarchicalCopyAllReduce"
    )]
    Load(#[from] LoadError),
    /// The GPUs cannot be linked.
    #[error("NCCL cannot link these GPUs: {0}; set NCCL_DEBUG=INFO to see its attempts")]
    Link(CallError),
    /// A sum has failed. It is unknown which calls each GPU has completed.
    #[error(
        "NCCL cannot sum: {0}. Its communicators of these GPUs were abandoned: restart the program from its last \
         checkpoint; set NCCL_DEBUG=WARN for details"
    )]
    Sum(CallError),
    /// A call has timed out.
    #[error(
        "an NCCL call has timed out: {0}. Its communicators of these GPUs were abandoned, because a GPU, its driver \
         or its link hangs; check nvidia-smi and lines with Xid in the kernel log (dmesg). Restart the program from \
         its last checkpoint. If NCCL only takes longer, raise the timeout of the strategy, half of which applies to \
         NCCL; set NCCL_DEBUG=INFO to see what it waits for"
    )]
    TimedOut(CallError),
    /// An earlier call has failed or timed out, so the communicators were aborted.
    #[error(
        "NCCL was abandoned on these GPUs, because an earlier call failed: {0}; restart the program from its last checkpoint"
    )]
    Abandoned(CallError),
    /// Another sum of this process is still running.
    #[error(
        "NCCL runs one operation at a time in a process, and was busy with another run for {waited:?}; if that is too \
         short, raise the timeout of the strategy, half of which applies to NCCL"
    )]
    Busy {
        /// The time that this sum has waited for the other one.
        waited: Duration,
    },
    /// The parts cannot be summed, for the given reason.
    #[error("the parts of a sum differ: {0}")]
    Parts(String),
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Fault {
    /// Converts the fault to an error that names the given devices. Candle's errors are returned unchanged.
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

/// Creates the error for a call that the given GPUs have not completed in time.
pub(super) fn timed_out(call: &'static str, gpus: &[usize], waited: Duration) -> CallError {
    let names = gpus.iter().map(|gpu| format!("GPU {gpu}")).collect::<Vec<_>>();
    CallError { call, reason: format!("{} has not finished within {waited:?}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_nccl_library::Nccl;

    // The texts are those of the loader of Linux.
    #[cfg(target_os = "linux")]
    #[test]
    fn without_the_library_the_error_names_the_package() {
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
            "libnccl.so.2 was searched for in LD_LIBRARY_PATH (",
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
        assert!(
            text.contains(
                "NcclAllReduce needs NCCL to sum between GPUs. NCCL 2.13.4 is installed, but 2.14 or later is needed"
            ),
            "{text}"
        );
    }
}
