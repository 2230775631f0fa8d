//! Sums over workers by NCCL, NVIDIA's library for collective operations between GPUs.
//!
//! | module | contents |
//! |---|---|
//! | `setup` | [`over`]: sets up NCCL for workers that are already linked |
//! | `settings`, `error` | [`Settings`]: the GPU and the deadline; [`Error`]: errors of the setup |
//! | `offer` | the records that workers exchange before, and the agreement on them: pure |
//! | `sums` | the `NativeSum`: the timeout of a sum, and the handling of failures |
//! | `library` | the operations of NCCL, as a trait |
//! | `installed` | the check for the driver |
//! | `cuda` | a GPU through cudarc, and its communicator (the `unsafe`) |
//!
//! This crate never uses GPU memory that belongs to a tensor.
//!
//! Workers keep their existing links, such as sockets, for messages, for the agreement on each sum, and for the
//! detection of failed workers. NCCL computes the sums in [`Order::Fast`](distribute_collective::group::Order::Fast):
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
//! The crate is built without CUDA. NCCL and the driver are loaded when [`over`] is called. If one of them is missing,
//! the error explains what to install. Vectors are copied from the host's memory to the GPU and back, so a sum crosses
//! the bus twice.
//!
//! # Failures
//!
//! - If a worker is without NCCL or a GPU, or shares a GPU with another worker, [`over`] fails on all workers, with an
//!   error that names that worker.
//! - If a worker is killed, is stopped or times out during a sum, the others abort NCCL's communicator when the links
//!   report the disconnect or the call times out. They return the error that names the worker, as they would without
//!   NCCL.
//! - After that, and after a new rendezvous, sums use an algorithm of this project. Set up NCCL again to use it again.

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
