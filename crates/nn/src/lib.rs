//! Layers and losses that are fast on the CPU and support several replicas and empty per-replica batches.
//!
//! The layers have the same names and signatures as those in candle_nn, so a model switches to them by changing its
//! `use` lines. They determine the replica on which they run with
//! [`get_replica_context`](distribute_core::get_replica_context). Other items of candle_nn that models commonly use are
//! re-exported. [`ops`] and [`rotary_emb`] provide gradients for functions whose results candle_nn detaches from the
//! graph. The guide `docs/train/transformers.md` shows the changes that a model needs.
//!
//! ```
//! // was: use candle_nn::{Embedding, Linear, Module, RmsNorm, VarBuilder, embedding};
//! //      use candle_nn::{linear_no_bias as linear, rms_norm};
//! use distribute::nn::{Embedding, Linear, Module, RmsNorm, VarBuilder, embedding, linear_no_bias as linear, rms_norm};
//! ```

// There is one file for each layer. Shared: `operation` and `table` (operations in candle's form, whose gradients go to
// buckets), `together` (lookups of several tables), `gemm` (matrix products in place; the `unsafe`), `gradients` (those
// that candle lacks or computes wrongly), `backward` (the traversal of candle's graph with these), `ids`, `lanes`,
// `exp`, `windows`, `autocast` and `widened` (mixed precision). This crate never depends on a certain kind of strategy.
//
// A fast layer consists of a type, functions with candle_nn's signatures, and `From` candle_nn's type. `is_fusable`
// tells which operands its operation supports (f32 and f64 on the CPU); candle's operations compute the rest.
// The operation is an `Operation` on input, weight and bias (operation.rs), or a `Combine` of a table's rows
// (combine.rs). Its gradient for a parameter comes from base's `gradients::gradient` or `gradients::row_gradient`;
// another input gets a tensor if it tracks one (`track_op`). `layer_norm.rs` is the shortest example;
// distribute/tests/computing/fused/ compares the layers with candle's. A function that candle detaches from the
// graph goes into `ops` or `rotary_emb`, under candle's name.

mod activation;
mod attention;
mod autocast;
mod backward;
mod batch_norm;
mod combine;
mod conv1d;
mod conv2d;
mod conv_transpose;
mod device_table;
mod dropout;
mod dynamic_embedding;
mod embedding;
mod embedding_bag;
mod exp;
mod gemm;
mod gradients;
mod ids;
mod lanes;
mod layer_norm;
mod linear;
mod lora;
pub mod loss;
mod operation;
pub mod ops;
mod per_thread;
mod pool;
mod products;
pub mod rnn;
pub mod rotary_emb;
mod scatter;
mod sequential;
mod softmax;
mod table;
mod together;
mod transpose;
mod upsample;
mod widened;
mod windows;

#[doc(alias = "SyncBatchNorm")]
#[doc(alias = "tf.keras.layers.BatchNormalization")]
#[doc(alias = "BatchNormalization")]
#[doc(alias = "tf.keras.layers.experimental.SyncBatchNormalization")]
#[doc(alias = "SyncBatchNormalization")]
pub use batch_norm::BatchNorm;
pub use batch_norm::batch_norm;
// candle_nn's own items: all their operations have gradients.
pub use candle_nn::{
    Activation, BatchNormConfig, Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig,
    Func, FuncT, GroupNorm, Init, LayerNormConfig, Module, ModuleT, PReLU, VarBuilder, encoding, func,
    func_t, group_norm, init, prelu,
};
#[doc(alias = "tf.keras.layers.Conv1DTranspose")]
#[doc(alias = "tf.nn.conv1d_transpose")]
pub use conv_transpose::ConvTranspose1d;
#[doc(alias = "tf.keras.layers.Conv2DTranspose")]
#[doc(alias = "tf.nn.conv2d_transpose")]
pub use conv_transpose::ConvTranspose2d;
pub use conv_transpose::{
    conv_transpose1d, conv_transpose1d_no_bias, conv_transpose2d, conv_transpose2d_no_bias,
};
#[doc(alias = "tf.keras.layers.Conv1D")]
#[doc(alias = "tf.nn.conv1d")]
pub use conv1d::Conv1d;
pub use conv1d::{conv1d, conv1d_no_bias};
#[doc(alias = "tf.keras.layers.Conv2D")]
#[doc(alias = "tf.nn.conv2d")]
pub use conv2d::Conv2d;
pub use conv2d::{conv2d, conv2d_no_bias};
pub use distribute_base::MixedPrecision;
// Documented in `lookup`, whose functions take it as well.
#[doc(no_inline)]
pub use distribute_core::lookup::BagMode;
#[doc(alias = "tf.keras.layers.Dropout")]
#[doc(alias = "tf.random.experimental.stateless_dropout")]
#[doc(alias = "stateless_dropout")]
pub use dropout::Dropout;
#[doc(alias = "tfra.dynamic_embedding.Embedding")]
#[doc(alias = "Embedding")]
pub use dynamic_embedding::DynamicEmbedding;
pub use dynamic_embedding::{dynamic_embedding, dynamic_embedding_init};
#[doc(alias = "tf.keras.layers.Embedding")]
pub use embedding::Embedding;
pub use embedding::{embedding, embedding_init};
#[doc(alias = "tf.nn.embedding_lookup_sparse")]
#[doc(alias = "embedding_lookup_sparse")]
#[doc(alias = "tf.nn.safe_embedding_lookup_sparse")]
#[doc(alias = "safe_embedding_lookup_sparse")]
pub use embedding_bag::EmbeddingBag;
pub use embedding_bag::{embedding_bag, embedding_bag_init};
#[doc(alias = "tf.keras.layers.LayerNormalization")]
#[doc(alias = "LayerNormalization")]
pub use layer_norm::LayerNorm;
#[doc(alias = "tf.keras.layers.RMSNormalization")]
#[doc(alias = "RMSNormalization")]
pub use layer_norm::RmsNorm;
pub use layer_norm::{layer_norm, layer_norm_no_bias, rms_norm};
#[doc(alias = "tf.keras.layers.Dense")]
#[doc(alias = "Dense")]
pub use linear::Linear;
pub use linear::{linear, linear_b, linear_no_bias};
pub use lora::Lora;
pub use per_thread::{PerThread, per_thread};
#[doc(alias = "tf.nn.avg_pool1d")]
#[doc(alias = "tf.keras.layers.AveragePooling1D")]
pub use pool::avg_pool1d;
#[doc(alias = "tf.nn.avg_pool2d")]
#[doc(alias = "tf.keras.layers.AveragePooling2D")]
pub use pool::avg_pool2d;
#[doc(alias = "tf.keras.layers.GlobalAveragePooling2D")]
pub use pool::global_avg_pool2d;
#[doc(alias = "tf.keras.layers.GlobalMaxPooling2D")]
pub use pool::global_max_pool2d;
#[doc(alias = "tf.nn.max_pool1d")]
#[doc(alias = "tf.keras.layers.MaxPooling1D")]
pub use pool::max_pool1d;
#[doc(alias = "tf.nn.max_pool2d")]
#[doc(alias = "tf.keras.layers.MaxPooling2D")]
pub use pool::max_pool2d;
pub use pool::{adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d_with_stride, max_pool2d_with_stride};
#[doc(hidden)]
pub use products::Products;
#[doc(alias = "tf.keras.layers.GRU")]
pub use rnn::GRU;
#[doc(alias = "tf.keras.layers.LSTM")]
pub use rnn::LSTM;
pub use rnn::{GRUConfig, LSTMConfig, RNN, gru, lstm};
#[doc(alias = "tf.tensor_scatter_nd_update")]
#[doc(alias = "tf.scatter_nd")]
pub use scatter::scatter;
#[doc(alias = "tf.tensor_scatter_nd_add")]
pub use scatter::scatter_add;
#[doc(alias = "tf.keras.Sequential")]
pub use sequential::Sequential;
pub use sequential::seq;
pub use together::{RowLayer, look_up_together, prefetch_rows};
#[doc(alias = "tf.image.resize")]
pub use upsample::upsample_bilinear2d;
#[doc(alias = "interpolate1d")]
#[doc(alias = "tf.keras.layers.UpSampling1D")]
pub use upsample::upsample_nearest1d;
#[doc(alias = "interpolate2d")]
#[doc(alias = "tf.keras.layers.UpSampling2D")]
#[doc(alias = "tf.image.resize")]
pub use upsample::upsample_nearest2d;

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::backward::backward;
}
