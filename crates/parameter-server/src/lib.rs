//! Training with parameter servers: the strategy, the coordinator, the functions that workers run, and the
//! processes that serve.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate.
//!
//! | module | contents |
//! |---|---|
//! | `strategy` | the strategy whose variables are on parameter servers; clusters in one process |
//! | [`remote`] | the functions that workers run for a coordinator |
//! | `coordinator` | the coordinator that a program uses to schedule functions |
//! | `serve` | tasks that serve other tasks |
//!
//! This crate never assigns work to workers: `distribute-coordinator` does.

mod coordinator;
pub mod remote;
mod serve;
mod strategy;

pub use coordinator::{ClusterCoordinator, ClusterCoordinatorBuilder, Fetch, Status, WorkerStatus};
pub use serve::{Role, ServeBuilder, serve};
pub use strategy::{ParameterServerStrategy, ParameterServerStrategyBuilder};

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::coordinator::Scheduler;
    pub use crate::strategy::{Assembled, Members, SharedSettings, TaskSettings};
}
