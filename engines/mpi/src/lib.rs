//! Workers that are linked by MPI: a group that uses MPI for its messages, and for its sums in `Order::Fast`.
//!
//! | module | contents |
//! |---|---|
//! | `process` | [`run`]: from `MPI_Init_thread` to `MPI_Finalize` |
//! | `settings`, `error` | [`Settings`]: replicas and deadlines; [`Error`]: errors of joining |
//! | `background` | the thread that initializes and finalizes MPI, and makes its calls while no other thread waits |
//! | `links` | the `Transport`, and the lock of MPI's calls |
//! | `state`, `peer` | all other processes, and one of them |
//! | `envelope` | frames as messages of MPI: pure |
//! | `library`, `memory` | the calls to MPI (the `unsafe`), and the memory that it reads and writes |
//!
//! This crate never knows the purpose of a message.
//!
//! A program of several workers uses the group instead of a cluster. Start it with `mpirun -np 2 program`:
//!
//! ```no_run
//! use distribute::prelude::*;
//! use distribute_mpi::Settings;
//! use std::error::Error;
//!
//! # fn train(_: &Strategy) -> distribute::Result<()> { Ok(()) }
//! #[distribute::main]
//! fn main() -> Result<(), Box<dyn Error>> {
//!     distribute_mpi::run(Settings::default(), |group| {
//!         let strategy = MultiWorkerMirroredStrategy::builder().group(group).build()?;
//!         Ok(train(&strategy)?)
//!     })
//! }
//! ```
//!
//! # Threads that call MPI
//!
//! MPI is initialized with `MPI_THREAD_SERIALIZED`, which every MPI library supports: any thread may call MPI, but only
//! one at a time. A thread that waits for a message calls MPI itself, so that no other thread must be woken first. At
//! other times, a background thread calls it.
//!
//! With `MPI_THREAD_MULTIPLE`, each call would acquire further locks without any benefit, because the messages of a
//! pair must be sent in sequence anyway. A program that calls MPI itself needs that level, and must not call it while a
//! group exists.
//!
//! # Failures
//!
//! - If a process is killed, or exits without `MPI_Finalize`, `mpirun` ends all others immediately. This is MPI's
//!   behavior, and no error can be returned. Start the job again from its last checkpoint.
//! - A process that is stopped, or that is unreachable without MPI noticing it, is disconnected after 3 s without a
//!   message ([`Settings::silence`]).
//! - A process that has exited gracefully, or that times out in a call, is named in the error on all others, as it
//!   would be without MPI.
//! - Calls to MPI that fail are errors (`MPI_ERRORS_RETURN`): the other process of the call is disconnected,
//!   with MPI's text as the reason.
//! - Sums that MPI computes wait for all processes. They are polled until the call times out or a process is
//!   disconnected, and the errors of all workers then name the missing process. Later sums use an algorithm of this
//!   project.

mod background;
mod envelope;
mod error;
mod library;
mod links;
mod memory;
mod peer;
mod process;
mod settings;
mod state;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub use error::Error;
pub use library::CallError;
pub use process::run;
pub use settings::Settings;
