//! The launcher: processes here, on other hosts, and how they end.

#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(unix)]
mod endings;
mod kubernetes;
#[cfg(unix)]
mod mpirun;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
mod ssh;
#[cfg(unix)]
mod support;
