//! Collectives of threads and of several workers, against one thread; agreement and faults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod all_reduce;
mod conformance;
mod flight_recorder;
mod group;
#[cfg(all(target_os = "linux", not(shuttle)))]
mod idle;
#[cfg(all(unix, not(shuttle)))]
mod pause;
mod worlds;
