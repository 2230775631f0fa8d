//! Tests that run the command `distribute` as a process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod doctor;
#[cfg(unix)]
mod export;
#[cfg(unix)]
mod protocol;
mod status;
