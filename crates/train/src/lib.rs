//! Training beyond single steps: the runner, recovery, preemption, metrics, and the monitor of a job.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate.
//!
//! | module | contents |
//! |---|---|
//! | [`runner`] | a complete training in one call |
//! | `training` | recovery after a worker fails |
//! | `preemption` | graceful shutdown when a scheduler requests it |
//! | [`metrics`] | counts over all replicas, read outside a run |
//! | [`monitor`] | the status of a running job |

pub mod metrics;
#[cfg(unix)]
pub mod monitor;
mod preemption;
pub mod runner;
mod training;

pub use preemption::Preemption;
pub use training::Training;
