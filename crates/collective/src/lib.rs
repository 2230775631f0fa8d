//! Collectives: members of a team or group that exchange, reduce and gather values.
//!
//! | module | what it is |
//! |---|---|
//! | [`threads`] | teams, whose members are threads of this process |
//! | [`group`] | the processes of a world, which send each other bytes |
//! | [`recovery`] | how workers that meet again agree on whose state they take over |
//! | [`all_reduce`], [`all_gather`] | the operations, one a file |
//! | [`Failure`] | why one failed, on every member |
//!
//! Members compare the [`Fingerprint`](distribute_cluster::Fingerprint) of a call before any data moves. If they
//! differ, or a member is gone or late, all of them get the same error, which names the culprit and the call.

mod all_gather;
mod all_reduce;
mod combined;
mod failure;
mod filled;
mod sync;

pub mod group;
pub mod recovery;
pub mod threads;

pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub use combined::Combined;
pub use failure::Failure;
