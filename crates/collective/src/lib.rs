//! Collective operations, in which the replicas of one or more processes exchange, reduce and gather values.
//!
//! There are two levels. The replicas of a process are the *members* of a *team*: threads that pass pointers to each
//! other. The processes are the workers of a *group*: they send bytes to each other. A call begins in the team. The
//! last member to arrive makes the call in the group for the complete team, without holding the lock, while the others
//! wait.
//!
//! Before data is used, members compare the [`Fingerprint`](distribute_cluster::Fingerprint) of their calls. If
//! fingerprints differ, or a member exits or times out, all members get the same error, which names the responsible
//! member and the call.
//!
//! | module | contents |
//! |---|---|
//! | [`threads`] | teams. Start at [`Member`](threads::Member), the calls of a replica |
//! | [`group`] | groups. Start at [`Group`](group::Group), and [`GroupCall`](group::GroupCall) for one call |
//! | `all_reduce`, `all_gather` | [`all_reduce()`], [`all_gather()`]: the operations of all replicas |
//! | `combined`, `failure` | [`Combined`], [`Failure`]: the result of an operation, or its error |
//! | [`recovery`] | the decisions of workers that have re-formed the group |
//! | `fill_parallel`, `sync` | a vector that several threads fill; the primitives of synchronization |
//!
//! All synchronization of threads that is written by hand is in this crate, which does not use candle. So shuttle can
//! explore its interleavings (`--cfg shuttle`), and Miri can run its `unsafe` code, in seconds. This crate does not
//! depend on models or variables.

mod all_gather;
mod all_reduce;
mod combined;
mod failure;
mod fill_parallel;
mod sync;

pub mod group;
pub mod recovery;
pub mod threads;

pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub use combined::Combined;
pub use failure::Failure;
