//! Training beyond single steps: the runner, recovery, preemption, metrics, and the monitor of a job.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate.
//!
//! | module | contents |
//! |---|---|
//! | [`runner`] | a complete training run in one call |
//! | `training` | [`Training`]: recovery after a worker fails |
//! | `preemption` | [`Preemption`]: graceful shutdown when a scheduler requests it |
//! | [`metrics`] | sums over all replicas, read outside `run` |
//! | [`monitor`] | the status of a running job |
//!
//! This crate never computes an update itself.

pub mod metrics;
#[cfg(all(unix, feature = "monitor"))]
pub mod monitor;
mod preemption;
pub mod runner;
mod training;

pub use preemption::Preemption;
pub use training::{Training, TrainingBuilder};
