//! Strategies whose replicas train synchronously, in one process or on several workers.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate. Each strategy
//! implements `StrategyExtended`; `distribute-core` runs the steps.
//!
//! | module | contents |
//! |---|---|
//! | `kinds` | one device, mirrored, central storage |
//! | `builder` | the settings of a mirrored strategy |
//! | `multi_worker` | several workers: processes, or threads for tests |
//!
//! This crate never runs a step itself.

mod builder;
mod kinds;
mod multi_worker;

pub use builder::MirroredStrategyBuilder;
pub use kinds::{CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy};
pub use multi_worker::{
    HostedWeights, MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder, TableHosts, TableOptions,
};
