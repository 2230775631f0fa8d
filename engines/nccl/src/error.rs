//! The errors of setting up NCCL.

use distribute_collective::Failure;
use distribute_nccl_library::{CallError, LoadError};
use std::time::Duration;

/// An error that prevents workers from using NCCL for sums.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// NCCL is missing or too old.
    #[error(transparent)]
    Nccl(#[from] LoadError),
    /// CUDA's driver is missing.
    #[error(
        "CUDA's driver cannot be loaded: {reason}. Install NVIDIA's driver, which includes libcuda.so.1; start a \
         container with its GPUs (docker run --gpus all)"
    )]
    Driver {
        /// The error message from the dynamic loader.
        reason: String,
    },
    /// CUDA has no GPU with the requested number.
    #[error(
        "there is no GPU {gpu}: CUDA has {count} here; use a separate one for each worker (Settings::gpu, CUDA_VISIBLE_DEVICES)"
    )]
    NoGpu {
        /// The number of the requested GPU.
        gpu: usize,
        /// The number of GPUs.
        count: usize,
    },
    /// A call to CUDA or NCCL has failed on this worker.
    #[error("NCCL cannot be set up: {0}")]
    Call(#[from] CallError),
    /// Another worker cannot use NCCL, so no worker does.
    #[error("worker {worker} cannot use NCCL, so no worker can: {reason}")]
    Worker {
        /// The first worker that cannot use NCCL.
        worker: usize,
        /// The error of worker `worker`, as text.
        reason: String,
    },
    /// Two workers use the same GPU, but NCCL requires a separate one for each.
    #[error(
        "workers {first} and {second} use the same GPU ({gpu}), but NCCL needs one for each: use others (Settings::gpu, \
         CUDA_VISIBLE_DEVICES)"
    )]
    SameGpu {
        /// The first of the two workers.
        first: usize,
        /// The second worker.
        second: usize,
        /// The GPU's UUID.
        gpu: String,
    },
    /// Workers have different releases of NCCL.
    #[error(
        "worker {worker} has NCCL {theirs}, but worker 0 has {first}: install one release for all workers"
    )]
    Release {
        /// The first worker whose release differs from worker 0's.
        worker: usize,
        /// The release of NCCL on worker `worker`.
        theirs: String,
        /// The release of NCCL on worker 0.
        first: String,
    },
    /// NCCL has not linked all workers before the deadline.
    #[error(
        "NCCL has not linked all {workers} workers within {:.0} s: it needs a network between their hosts; set \
         NCCL_DEBUG=INFO to see its attempts, and NCCL_SOCKET_IFNAME to the interface to use",
        waited.as_secs_f64()
    )]
    Deadline {
        /// The number of workers.
        workers: usize,
        /// The time for which this worker has waited.
        waited: Duration,
    },
    /// The workers could not agree on the setup.
    #[error("NCCL cannot be set up: {0}")]
    Failure(#[from] Failure),
    /// The record of a worker is malformed.
    #[error(
        "the NCCL record of worker {worker} cannot be read: all workers have to run one version of this crate"
    )]
    Record {
        /// The index of the worker.
        worker: usize,
    },
}
