//! A worker is lost and another takes its place: the weights become those of a training without interruption (INV-42).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod processes;
mod program;
mod threads;
