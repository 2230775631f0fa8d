//! Servers and their clients over sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
mod doctor;
mod failures;
mod support;
