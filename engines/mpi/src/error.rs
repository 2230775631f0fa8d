//! Why a process could not join the others.

use crate::CallError;
use distribute_cluster::WorldError;
use distribute_cluster::resolver::Scheduler;
use std::io;
use std::time::Duration;

/// Why a process could not join the others, over MPI.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The numbers don't make a world.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A process joins once, and nobody else initializes MPI in it.
    #[error(
        "MPI has been initialized before: call distribute_mpi::run once in a process, and leave MPI_Init and MPI_Finalize to it"
    )]
    AlreadyInitialized,
    /// Calls have to come from several threads, one at a time.
    #[error(
        "this MPI library does not provide MPI_THREAD_SERIALIZED: take one that does, as Open MPI and MPICH do"
    )]
    Threads,
    /// The launcher started several processes, and each would train alone.
    #[error(
        "{scheduler} started this process as one of several, but MPI sees it alone: start the program with the mpirun of the \
         MPI library that it was built with, and without TF_CONFIG"
    )]
    Alone {
        /// Who started it.
        scheduler: Scheduler,
    },
    /// All workers have equally many replicas.
    #[error(
        "worker {worker} has {replicas} replicas and worker 0 has {first}: give all workers the same number"
    )]
    Replicas {
        /// The first that differs from worker 0.
        worker: usize,
        /// How many it has.
        replicas: u64,
        /// How many worker 0 has.
        first: u64,
    },
    /// All workers run the same version of this crate.
    #[error(
        "worker {worker} runs another version of distribute than worker 0: build one program for all workers"
    )]
    Version {
        /// The first that differs from worker 0.
        worker: usize,
    },
    /// Not all processes have come in time.
    #[error(
        "MPI has not brought all processes together after {} s: one of those that mpirun started has not called \
         distribute_mpi::run, or cannot be reached",
        waited.as_secs_f32().ceil()
    )]
    Deadline {
        /// How long this process has waited.
        waited: Duration,
    },
    /// A call of MPI has failed.
    #[error("the workers cannot be linked: {0}")]
    Call(#[from] CallError),
    /// The system refuses a thread.
    #[error("the thread that calls MPI in the background cannot be started: {0}")]
    Thread(#[from] io::Error),
}
