//! What is around training steps: the runner, recovery, preemption, metrics, and what is watched of a job.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.

pub mod metrics;
#[cfg(unix)]
pub mod monitor;
mod preemption;
pub mod runner;
mod training;

pub use preemption::Preemption;
pub use training::Training;
