//! Collectives of threads and of several workers, checked against one thread; agreement and failures.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod all_reduce;
mod conformance;
mod corruption;
mod flight_recorder;
mod group;
#[cfg(all(target_os = "linux", not(shuttle)))]
mod idle;
#[cfg(all(unix, not(shuttle)))]
mod pause;
mod repeated;
mod worlds;
