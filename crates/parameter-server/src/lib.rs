//! Training against parameter servers: the strategy, the coordinator, the functions that workers run, and the
//! processes that serve.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.
//!
//! | module | contents |
//! |---|---|
//! | `strategy` | the strategy whose variables are on servers, and clusters in one process |
//! | [`remote`] | functions that workers run for a coordinator |
//! | `coordinator` | the coordinator that a program calls |
//! | `serve` | the tasks that serve others |

mod coordinator;
pub mod remote;
mod serve;
mod strategy;

pub use coordinator::{ClusterCoordinator, ClusterCoordinatorBuilder, Fetch, Status, WorkerStatus};
pub use serve::{Serve, serve};
pub use strategy::{LocalCluster, LocalClusterResolver, ParameterServerBuilder, ParameterServerStrategy};

/// The interface for the other crates of `distribute`. It is not public: anything in it may change.
#[doc(hidden)]
pub mod internal {
    pub use crate::coordinator::Scheduler;
    pub use crate::strategy::{Assembled, Members, Role, Servers, SharedSettings};
}
