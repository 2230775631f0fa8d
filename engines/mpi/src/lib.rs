//! Workers that MPI links: a group whose messages are MPI's, and whose sums in `Order::Fast` are.
//!
//! | module | what it is |
//! |---|---|
//! | `process` | [`run`]: from `MPI_Init_thread` to `MPI_Finalize` |
//! | `settings`, `error` | [`Settings`]: replicas and deadlines; [`Error`]: why the processes don't come together |
//! | `background` | the thread that begins and ends MPI, and moves bytes while nobody waits |
//! | `links` | the `Transport`: who calls MPI when |
//! | `state`, `peer` | all other processes, and one of them |
//! | `envelope` | frames as messages of MPI: pure |
//! | `library`, `memory` | the calls of MPI (the `unsafe`), and the memory that it reads and writes |
//!
//! A program of several workers takes the group in place of a cluster, and is started by `mpirun -np 2 program`:
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
//! # Which thread calls MPI
//!
//! MPI is asked for `MPI_THREAD_SERIALIZED`, which every MPI library has: any thread calls it, one at a time. A thread that waits for a
//! message calls MPI itself, so that no other has to be woken first; while nobody waits, a thread in the background does. With
//! `MPI_THREAD_MULTIPLE` each call would take locks of its own, for nothing: the messages of a pair have to be sent one after the other
//! anyway. A program that calls MPI beside needs that level, and may not do so while a group is there.
//!
//! # What happens when something breaks
//!
//! - A process that is killed, or ends without `MPI_Finalize`: `mpirun` ends all others at once. That is MPI's way, and no error can be
//!   returned; start the job again, from its last checkpoint.
//! - One that is stopped, or cut off where MPI does not notice, is lost when it has sent nothing for 3 s ([`Settings::silence`]).
//! - One that has ended in order, or is late in a call, is named in the error of that call on all others, as over any links.
//! - Calls of MPI that fail are errors (`MPI_ERRORS_RETURN`): the process that was called for is lost, with MPI's text as the reason.
//! - Sums of MPI wait for all, too: they are tested until the timeout of the call or the loss of a process, and all workers then
//!   name who is missing. Later sums go by an algorithm of this project's own.

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
