//! Rules: properties of all of them, and their kernels.

#![allow(clippy::unwrap_used, clippy::panic)]

mod kernel;
mod properties;
