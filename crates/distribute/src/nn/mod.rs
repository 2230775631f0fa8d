//! Parts of models that know about replicas and empty pieces.
//!
//! Layers have the names and signatures of candle_nn's, and find the replica that they run on by themselves
//! ([`get_replica_context`](crate::get_replica_context)): a model takes them by another `use` line.

mod batch_norm;
mod dropout;
mod gemm;
mod linear;
pub mod loss;

pub use batch_norm::{BatchNorm, batch_norm};
pub use candle_nn::BatchNormConfig;
pub use dropout::Dropout;
pub use linear::{Linear, linear, linear_b, linear_no_bias};
