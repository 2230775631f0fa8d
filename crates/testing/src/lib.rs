//! Helpers shared by the tests of all crates. Only tests depend on this crate.

// As in the tests that use it.
#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "certificates")]
mod certificates;
pub mod child;
#[cfg(unix)]
mod port;
mod random;
mod skipped;
mod watched;

#[cfg(feature = "certificates")]
pub use certificates::{certificates, certificates_of};
#[cfg(unix)]
pub use port::Port;
pub use random::{SplitMix, fuzz_inputs};
pub use skipped::skipped;
pub use watched::{watched, watched_for};
