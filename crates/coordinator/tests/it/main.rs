//! A coordinator and its workers, in one process and over connections.

#![allow(clippy::unwrap_used, clippy::panic)]

mod local;
mod remote;
mod support;
