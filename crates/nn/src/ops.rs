//! The functions of `candle_nn::ops`, all of them with gradients.
//!
//! `candle_nn::ops` has fused kernels that detach their inputs from the graph: `softmax_last_dim`, `rms_norm`,
//! `layer_norm` and `sdpa` (and those of [`rotary_emb`](super::rotary_emb)). A model that uses them trains
//! only the layers after the last of them, although its loss falls. Gradients flow through the functions of
//! this module. All others are re-exported from candle_nn, so one `use` line is enough:
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use distribute::nn::ops; // was: use candle_nn::ops;
//!
//! let x = Var::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
//! let first = ops::softmax_last_dim(&x)?.narrow(1, 0, 1)?;
//! let gradients = first.sum_all()?.backward()?;
//! assert!(gradients.get(&x).is_some());
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! `candle_nn::ops::dropout` is left out, because its masks come from a generator that all replicas share.
//! Masks of [`Dropout`] are the same for any number of replicas.

#[doc(alias = "tf.keras.layers.Dropout")]
#[doc(alias = "tf.random.experimental.stateless_dropout")]
#[doc(alias = "stateless_dropout")]
pub use super::Dropout;
use super::attention::Attention;
use super::{LayerNorm, operation, softmax};
use candle_core::shape::Dim;
use candle_core::{D, Module, Result, Tensor, bail};
pub use candle_nn::ops::{
    Identity, hard_sigmoid, layer_norm_slow, leaky_relu, log_softmax, mish, pixel_shuffle, pixel_unshuffle,
    replication_pad2d, rms_norm_slow, selu, sigmoid, silu, swiglu,
};

/// Computes softmax over the last dimension of `[…, n]`, with any strides.
///
/// f32 and f64 on the CPU use one pass; other dtypes and devices use several of candle's operations. f16 and
/// bf16 are computed as f32. candle sums them in half precision, so for 4096 equal numbers its softmax has a
/// sum of 2, or of 16.
///
/// # Errors
/// - `xs` is a scalar.
/// - The dtype of `xs` has no exponential.
#[doc(alias = "tf.nn.softmax")]
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    softmax::softmax_last_dim(xs)
}

/// Computes softmax over one dimension.
///
/// # Errors
/// - `xs` has no such dimension.
/// - [`softmax_last_dim`] returns an error.
#[doc(alias = "tf.nn.softmax")]
pub fn softmax<I: Dim>(xs: &Tensor, dim: I) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "softmax")?;
    let last = xs.rank() - 1;
    if dim == last {
        softmax_last_dim(xs)
    } else {
        // Also used for an empty per-replica batch, for which candle's softmax fails.
        softmax_last_dim(&xs.transpose(dim, last)?)?.transpose(dim, last)?.contiguous()
    }
}

/// Scales rows of the last dimension to a mean square of 1, and multiplies them by a weight `alpha` of `[n]`.
///
/// This is the function of [`RmsNorm`](super::RmsNorm). `eps` is added to mean squares.
///
/// # Errors
/// - The shapes do not fit.
/// - The operands have different dtypes.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    require_rows("rms_norm", xs, &[("alpha", alpha)])?;
    LayerNorm::rms_norm(alpha.clone(), eps.into()).forward(xs)
}

/// Shifts rows of the last dimension to mean 0, scales them to variance 1, multiplies them by `alpha` and adds
/// `beta`.
///
/// This is the function of [`LayerNorm`]. `alpha` and `beta` are `[n]`; `eps` is added to variances.
///
/// # Errors
/// - The shapes do not fit.
/// - The operands have different dtypes.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    require_rows("layer_norm", xs, &[("alpha", alpha), ("beta", beta)])?;
    LayerNorm::new(alpha.clone(), beta.clone(), eps.into()).forward(xs)
}

/// Refuses parameters that do not have the length of rows, or have another dtype.
fn require_rows(name: &str, xs: &Tensor, parameters: &[(&str, &Tensor)]) -> Result<()> {
    if xs.dtype().is_int() {
        bail!("{name}: rows of {:?} have no mean square: convert them by to_dtype", xs.dtype());
    }
    let size = xs.dim(D::Minus1)?;
    match parameters.iter().find(|(_, parameter)| parameter.dims() != [size]) {
        Some((_, other)) => {
            bail!("{name}: rows of {:?} need parameters of [{size}], not {:?}", xs.dims(), other.dims())
        }
        None => operation::require_dtype(name, ("xs", xs), parameters),
    }
}

/// Computes attention: `softmax(q kᵀ · scale + mask) v`.
///
/// - `q`: `[batch, heads, queries, width]`.
/// - `k`: `[batch, kv_heads, keys, width]`. `kv_heads` divides `heads`, and each serves `heads / kv_heads`
///   consecutive heads.
/// - `v`: `[batch, kv_heads, keys, value_width]`.
/// - `mask`: broadcast to `[batch, heads, queries, keys]`. A mask of the dtype of `q` is added to the scores. A mask
///   of u8 hides the keys whose element is not 0, as in candle-transformers.
/// - `do_causal`: if true, the last query sees all keys, and each query before it one key less.
/// - `softcapping`: 1 or infinity for none. Otherwise scores become `tanh(scores / softcapping) · softcapping` before
///   the mask.
/// - The result: `[batch, heads, queries, value_width]`.
///
/// f32 and f64 on the CPU use one operation, which keeps the weights of each head for backward. A trained
/// mask, a cap, other dtypes and other devices use several of candle's operations. A query that sees no key is
/// NaN, as by the formula. The gradients of keys and values are NaN in this case, even if the loss ignores
/// that query. `candle_nn::ops::sdpa` runs on Metal only, and has no gradient.
///
/// # Errors
/// - The shapes or dtypes do not fit.
/// - The cap is not positive.
#[doc(alias = "tf.keras.layers.Attention")]
#[doc(alias = "Attention")]
#[doc(alias = "scaled_dot_product_attention")]
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    Attention::new((q, k, v), mask, do_causal, scale, softcapping)?.apply(q, k, v)
}
