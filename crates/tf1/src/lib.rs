//! TensorFlow 1: its older names, and training between graphs.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.
//!
//! | module | what it is |
//! |---|---|
//! | [`legacy`] | older names of methods |
//! | [`between_graph`] | each worker runs the whole program, against variables on servers |

pub mod between_graph;
pub mod legacy;
