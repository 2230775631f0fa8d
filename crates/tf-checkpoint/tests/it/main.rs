//! Checkpoints of real TensorFlow are read bit-identically, and damaged ones are refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bundle;
mod convert;
mod damage;
mod fixtures;
mod read;
