//! Transports and how tasks find each other: what each has to do, who is refused, and what is noticed of the dead.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod elastic;
mod endpoint;
mod faults;
mod handshake;
mod refusals;
mod rendezvous;
#[cfg(target_os = "linux")]
mod shared_memory;
mod support;
mod wire;
