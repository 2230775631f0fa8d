//! Runs the command as a process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod doctor;
mod status;
