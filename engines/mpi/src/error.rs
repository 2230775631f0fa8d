//! The errors of joining the other processes.

use crate::CallError;
use distribute_cluster::WorldError;
use distribute_cluster::resolver::Scheduler;
use std::io;
use std::time::Duration;

/// An error that prevents a process from joining the others over MPI.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The numbers of workers and replicas do not form a valid world.
    #[error(transparent)]
    World(#[from] WorldError),
    /// MPI was already initialized in this process, by an earlier call or by other code.
    #[error(
        "MPI has been initialized before: call distribute_mpi::run once in a process, and leave MPI_Init and MPI_Finalize to it"
    )]
    AlreadyInitialized,
    /// The MPI library does not support calls from several threads, one at a time.
    #[error(
        "this MPI library does not provide MPI_THREAD_SERIALIZED: use one that does, such as Open MPI or MPICH"
    )]
    Threads,
    /// The launcher started several processes, but each would train alone.
    #[error(
        "{scheduler} started this process as one of several, but MPI sees only this process: start the program with \
         the mpirun of the MPI library that it was built with, and without TF_CONFIG"
    )]
    Alone {
        /// The launcher that started the processes.
        scheduler: Scheduler,
    },
    /// The workers have different numbers of replicas.
    #[error(
        "worker {worker} has {replicas} replicas, but worker 0 has {first}: use the same number on all workers"
    )]
    Replicas {
        /// The first worker that differs from worker 0.
        worker: usize,
        /// The number of replicas of worker `worker`.
        replicas: u64,
        /// The number of replicas of worker 0.
        first: u64,
    },
    /// The workers run different versions of this crate.
    #[error(
        "worker {worker} runs another version of distribute than worker 0: build one program for all workers"
    )]
    Version {
        /// The first worker that differs from worker 0.
        worker: usize,
    },
    /// The deadline passed before all processes had joined.
    #[error(
        "MPI has not connected all processes after {} s: a process that mpirun started has not called \
         distribute_mpi::run, or cannot be reached",
        waited.as_secs_f32().ceil()
    )]
    Deadline {
        /// The time for which this process has waited.
        waited: Duration,
    },
    /// A call to MPI has failed.
    #[error("the workers cannot be linked: {0}")]
    Call(#[from] CallError),
    /// The system cannot start a thread.
    #[error("the thread that calls MPI in the background cannot be started: {0}")]
    Thread(#[from] io::Error),
}
