//! Checkpoints: what was saved is restored, torn files are reported, and other files are left alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod damage;
mod format;
mod index;
#[cfg(unix)]
mod killed;
#[cfg(unix)]
mod manager;
#[cfg(unix)]
mod parts;
mod round_trip;
mod tensors;
