//! What the tests of all crates share. Nothing but tests depends on it.

// As in the tests that it is part of.
#![allow(clippy::unwrap_used, clippy::panic)]

pub mod child;
mod random;
mod watched;

pub use random::SplitMix;
pub use watched::watched;
