//! The launcher: processes on this host and on others, and their exits.

#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(unix)]
mod endings;
mod kubernetes;
#[cfg(unix)]
mod mpirun;
#[cfg(unix)]
mod processes;
mod schema;
#[cfg(unix)]
mod ssh;
#[cfg(unix)]
mod support;
