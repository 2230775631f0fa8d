//! Checkpoints: what was saved comes back, what is torn is told, and what lies beside is left alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod damage;
mod format;
mod index;
#[cfg(unix)]
mod manager;
mod round_trip;
mod tensors;
