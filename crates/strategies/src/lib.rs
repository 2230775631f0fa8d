//! The strategies whose replicas train in lock step: in one process, and on several workers.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.
//!
//! | module | what it is |
//! |---|---|
//! | `kinds` | one device, mirrored, central storage |
//! | `builder` | the settings of a mirrored strategy |
//! | `multi_worker` | several workers: processes, or threads for tests |

mod builder;
mod kinds;
mod multi_worker;

pub use builder::MirroredBuilder;
pub use kinds::{CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy};
pub use multi_worker::{MultiWorkerBuilder, MultiWorkerMirroredStrategy};
