//! Rules: what holds for all, and their kernels.

#![allow(clippy::unwrap_used, clippy::panic)]

mod kernel;
mod properties;
