//! Collectives: members of a group that meet, reduce and gather.
//!
//! | module | what it is |
//! |---|---|
//! | [`threads`] | the engine whose members are threads of this process |
//! | [`group`] | the processes of a world, which hand each other bytes |
//! | [`all_reduce`], [`all_gather`] | the operations, one a file |
//! | [`Failure`] | why one failed, on every member |
//!
//! A call in which all members take part is compared by its [`Fingerprint`](distribute_cluster::Fingerprint) before
//! any data moves: where members differ, or one is gone or late, all get one error that names who and where.

mod all_gather;
mod all_reduce;
mod combined;
mod failure;
mod filled;
mod sync;

pub mod group;
pub mod threads;

pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub use combined::Combined;
pub use failure::Failure;
