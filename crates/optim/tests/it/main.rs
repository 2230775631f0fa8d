//! Tests of the rules' properties and kernels.

#![allow(clippy::unwrap_used, clippy::panic)]

mod kernel;
mod properties;
