//! Why workers cannot sum by NCCL.

use distribute_collective::Failure;
use distribute_nccl_library::{CallError, LoadError};
use std::time::Duration;

/// Why workers cannot sum by NCCL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// NCCL is not there, or too old.
    #[error(transparent)]
    Nccl(#[from] LoadError),
    /// CUDA's driver is not there.
    #[error(
        "CUDA's driver cannot be loaded: {reason}. Install NVIDIA's driver, of which libcuda.so.1 is a part; in a container, start \
         it with its GPUs (docker run --gpus all)"
    )]
    Driver {
        /// What the system's loader said.
        reason: String,
    },
    /// CUDA has no such GPU.
    #[error(
        "there is no GPU {gpu}: CUDA has {count} here; give each worker one of its own (Settings::gpu, CUDA_VISIBLE_DEVICES)"
    )]
    NoGpu {
        /// Which was asked for.
        gpu: usize,
        /// How many there are.
        count: usize,
    },
    /// A call of CUDA or NCCL has failed here.
    #[error("NCCL cannot be set up: {0}")]
    Call(#[from] CallError),
    /// Another worker cannot use NCCL, so that none does.
    #[error("worker {worker} cannot use NCCL, and so none can: {reason}")]
    Worker {
        /// The first that cannot.
        worker: usize,
        /// Its error.
        reason: String,
    },
    /// NCCL wants a GPU for each worker.
    #[error(
        "workers {first} and {second} use one GPU ({gpu}), and NCCL wants one for each: give them others (Settings::gpu, \
         CUDA_VISIBLE_DEVICES)"
    )]
    SameGpu {
        /// The first of the two.
        first: usize,
        /// The second.
        second: usize,
        /// The GPU's UUID.
        gpu: String,
    },
    /// All workers load one release.
    #[error(
        "worker {worker} has NCCL {theirs}, and worker 0 has {first}: install one release for all workers"
    )]
    Release {
        /// The first worker that differs.
        worker: usize,
        /// What it has.
        theirs: String,
        /// What worker 0 has.
        first: String,
    },
    /// A worker has not come to NCCL in time.
    #[error(
        "NCCL has not linked all {workers} workers within {:.0} s: it needs a network of its own between their hosts; \
         NCCL_DEBUG=INFO says what it tries, and NCCL_SOCKET_IFNAME names the interface to use",
        waited.as_secs_f64()
    )]
    Deadline {
        /// How many there are.
        workers: usize,
        /// How long this one has waited.
        waited: Duration,
    },
    /// The workers do not come together to set it up.
    #[error("NCCL cannot be set up: {0}")]
    Failure(#[from] Failure),
    /// What a worker told cannot be read.
    #[error(
        "what worker {worker} told of its NCCL cannot be read: all workers have to run one version of this crate"
    )]
    Record {
        /// The worker.
        worker: usize,
    },
}
