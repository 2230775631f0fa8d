//! The surroundings of training steps: the runner, recovery, preemption, metrics, the monitor of a job.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.
//!
//! | module | what it is |
//! |---|---|
//! | [`runner`] | a whole training in one call |
//! | `training` | goes on when a worker is lost |
//! | `preemption` | ends in order when a scheduler asks for it |
//! | [`metrics`] | counts of replicas, read outside of a run |
//! | [`monitor`] | what a running job says of itself |

pub mod metrics;
#[cfg(unix)]
pub mod monitor;
mod preemption;
pub mod runner;
mod training;

pub use preemption::Preemption;
pub use training::Training;
