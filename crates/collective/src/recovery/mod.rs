//! The decisions of workers that have re-formed the group: the state from which training continues, and which workers
//! receive it. This module contains only pure functions and values, without sockets, threads and clocks.
//!
//! | module | contents |
//! |---|---|
//! | [`recovery_limit`] | the errors after which a worker re-forms the group |
//! | [`updates`] | the progress of a worker, and the point from which it continues |
//! | [`report`] | the report of each worker, and the choice of the state that others receive |
//! | [`state_transfer`] | the rounds in which reports and the state are sent |
//! | [`shards`] | the copies of state that is sharded over the workers, and which worker sends which to whom |
//! | [`shard_transfer`] | the rounds in which workers receive shards |
//! | `rounds` | the records of a round |
//!
//! The state itself is opaque to this module. The crate `distribute-train` executes these decisions for one process,
//! and `distribute-simulation` for all workers of a world at once.

// - INV-42: of the workers with most updates, the state of one that agreed with others last, after the last of
//   them. Until a process has that state, it makes no calls with the others. When all have finished, they do not
//   re-form the group again. A received state counts at once, with its numbers. Tests: `recovery/report.rs`,
//   `recovery/state_transfer.rs`, `simulation/tests/it/scenarios.rs`, `simulation/tests/it/found.rs`,
//   `distribute/tests/clusters/recovery/`.

pub mod recovery_limit;
pub mod report;
mod rounds;
pub mod shard_transfer;
pub mod shards;
pub mod state_transfer;
pub mod updates;

pub use recovery_limit::RecoveryLimit;
pub use report::{Report, Share};
pub use shard_transfer::ShardTransfer;
pub use state_transfer::StateTransfer;
pub use updates::{Counters, Updates};
