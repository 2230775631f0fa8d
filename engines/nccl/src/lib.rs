//! Sums of workers by NCCL, NVIDIA's library for collectives between GPUs.
//!
//! | module | what it is |
//! |---|---|
//! | `setup` | [`over`]: workers that are linked set up NCCL beside their links |
//! | `settings`, `error` | [`Settings`]: which GPU, and deadlines; [`Error`]: why there is no NCCL |
//! | `offer` | what workers tell each other before, and what follows from it: pure |
//! | `sums` | the `NativeSum`: how long a sum is waited for, and what follows where it fails |
//! | `library` | what is asked of NCCL, as a trait |
//! | `installed` | whether the driver is there |
//! | `cuda` | a GPU by cudarc, and its communicator (the `unsafe`) |
//!
//! Workers keep the links that they have, sockets say: these carry messages, agree on each sum and tell who is missing. NCCL makes
//! the sums that are asked for in [`Order::Fast`](distribute_collective::group::Order::Fast):
//!
//! ```no_run
//! use distribute_collective::group::Group;
//! use distribute_nccl::Settings;
//!
//! # fn sum(_: &Group) {}
//! # fn program(group: Group) -> Result<(), distribute_nccl::Error> {
//! let group = distribute_nccl::over(group, Settings::default())?;
//! sum(&group); // by `GroupCall::all_reduce_vectors`
//! # Ok(())
//! # }
//! ```
//!
//! The crate is built without CUDA: NCCL and the driver are loaded when [`over`] is called, and where one is not there it says what to
//! install. Vectors come from the host's memory and go back to it, so a sum also takes the way over the bus, twice.
//!
//! # What happens when something breaks
//!
//! - A worker without NCCL, without a GPU, or with one that another worker uses: [`over`] fails on all workers, and names it.
//! - A worker that is killed, stopped or late while a sum is made: the others give up the sum when the links tell its loss or when the
//!   call's timeout is over, abort NCCL's communicator, and get the error that names the worker, as without NCCL.
//! - After that, and where workers have met again, sums go by an algorithm of this project's own: set NCCL up again.

mod cuda;
mod error;
mod installed;
mod library;
mod offer;
mod settings;
mod setup;
mod sums;

pub use distribute_nccl_library::{CallError, LoadError};
pub use error::Error;
pub use settings::Settings;
pub use setup::over;
