//! Transports and rendezvous: requirements, refusals, and detection of failed tasks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod elastic;
mod endpoint;
#[cfg(target_os = "linux")]
mod exchange;
mod faults;
mod handshake;
mod machines;
mod refusals;
mod rendezvous;
#[cfg(target_os = "linux")]
mod shared_memory;
mod spares;
mod support;
