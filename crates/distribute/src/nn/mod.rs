//! Parts of models that know about replicas and empty pieces.
//!
//! Layers have the names and signatures of candle_nn's, and find the replica that they run on by themselves
//! ([`get_replica_context`](crate::get_replica_context)): a model takes them by another `use` line.

mod batch_norm;
mod dropout;
mod embedding;
mod embedding_bag;
mod gemm;
mod ids;
mod linear;
pub mod loss;

pub use batch_norm::{BatchNorm, batch_norm};
pub use candle_nn::BatchNormConfig;
pub use dropout::Dropout;
pub use embedding::{Embedding, embedding};
pub use embedding_bag::{BagMode, EmbeddingBag, embedding_bag};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
