//! The operations of a strategy: calls outside replicas, and the call that takes a replica there.

mod begin;
mod destinations;
mod handle;
mod merge;
mod reduce;
mod reduce_to;
mod rejoin;
mod run;
mod update;

pub use destinations::Destinations;
pub use update::Contained;
