//! TensorFlow 1: its older names, and training between graphs.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.

pub mod between_graph;
pub mod legacy;
