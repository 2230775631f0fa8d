//! TensorFlow 1: its older names, and between-graph training.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate. Only
//! `distribute` depends on this crate.
//!
//! | module | contents |
//! |---|---|
//! | [`legacy`] | older names of methods |
//! | [`between_graph`] | training in which each worker runs the complete program, with variables on servers |

pub mod between_graph;
pub mod legacy;
