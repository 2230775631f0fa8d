//! The functions of `candle_nn::ops`, all with gradients.
//!
//! Some functions of `candle_nn::ops` are fused kernels that detach their inputs from the graph: `softmax_last_dim`,
//! `rms_norm`, `layer_norm` and `sdpa`. The same applies to those of [`rotary_emb`](super::rotary_emb). If a model uses
//! them, only the layers after the last of them are trained, although the loss decreases. The functions of this module
//! have gradients. All other functions are re-exported from candle_nn, so a single `use` line is enough:
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
//! `candle_nn::ops::dropout` is omitted, because its masks come from a generator that all replicas share. The masks
//! of [`Dropout`] are the same for any number of replicas.

#[doc(alias = "tf.keras.layers.Dropout")]
#[doc(alias = "tf.random.experimental.stateless_dropout")]
#[doc(alias = "stateless_dropout")]
pub use super::Dropout;
use super::attention::Attention;
use super::{LayerNorm, autocast, operation, softmax};
use candle_core::shape::Dim;
use candle_core::{D, Module, Result, Tensor, bail};
pub use candle_nn::ops::{
    Identity, hard_sigmoid, layer_norm_slow, leaky_relu, log_softmax, mish, pixel_shuffle, pixel_unshuffle,
    replication_pad2d, rms_norm_slow, selu, sigmoid, silu, swiglu,
};

/// Computes the softmax over the last dimension of `[…, n]`. The input may have any strides.
///
/// For f32 and f64 on the CPU, the softmax is a single operation; for other dtypes and devices, it consists of several
/// of candle's operations. f16 and bf16 are computed in f32. candle itself accumulates in half precision, so its
/// softmax of 4096 equal numbers has a sum of 2 (f16) or 16 (bf16).
///
/// # Errors
/// Returns an error in these cases:
/// - `xs` is a scalar.
/// - `xs` is a tensor of integers.
#[doc(alias = "tf.nn.softmax")]
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    softmax::softmax_last_dim(xs)
}

/// Computes the softmax over the dimension `dim`.
///
/// # Errors
/// Returns the errors of [`softmax_last_dim`], and an error if `xs` has no such dimension.
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

/// Scales rows along the last dimension to a mean square of 1, and multiplies them by the weight `alpha`, of shape
/// `[n]`.
///
/// This is the function that the layer [`RmsNorm`](super::RmsNorm) applies. `eps` is added to the mean square.
///
/// # Errors
/// Returns an error in these cases:
/// - The shapes do not match.
/// - `xs` is a tensor of integers.
/// - The operands have different dtypes. Under mixed precision, `xs` may be in half precision and `alpha` in f32.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    require_rows("rms_norm", xs, &[("alpha", alpha)])?;
    LayerNorm::rms_norm(alpha.clone(), eps.into()).forward(xs)
}

/// Shifts rows along the last dimension to mean 0, scales them to variance 1, multiplies them by `alpha` and adds
/// `beta`.
///
/// This is the function that the layer [`LayerNorm`] applies. `alpha` and `beta` have shape `[n]`; `eps` is added to
/// the variance.
///
/// # Errors
/// Returns an error in these cases:
/// - The shapes do not match.
/// - `xs` is a tensor of integers.
/// - The operands have different dtypes. Under mixed precision, `xs` may be in half precision and the others in f32.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    require_rows("layer_norm", xs, &[("alpha", alpha), ("beta", beta)])?;
    LayerNorm::new(alpha.clone(), beta.clone(), eps.into()).forward(xs)
}

/// Returns an error if a parameter does not have the length of the rows or has a different dtype, or if the rows are
/// integers.
fn require_rows(name: &str, xs: &Tensor, parameters: &[(&str, &Tensor)]) -> Result<()> {
    if xs.dtype().is_int() {
        bail!("{name}: rows of {:?} have no mean square: convert them with to_dtype", xs.dtype());
    }
    let size = xs.dim(D::Minus1)?;
    match parameters.iter().find(|(_, parameter)| parameter.dims() != [size]) {
        Some((_, other)) => {
            bail!("{name}: rows of {:?} need parameters of [{size}], not {:?}", xs.dims(), other.dims())
        }
        // Under mixed precision the layer converts the rows.
        None if autocast::widens(xs) => Ok(()),
        None => operation::require_dtype(name, ("xs", xs), parameters),
    }
}

/// Computes attention: `softmax(q kᵀ · scale + mask) v`.
///
/// - `q`: `[batch, heads, queries, width]`.
/// - `k`: `[batch, kv_heads, keys, width]`. `heads` must be a multiple of `kv_heads`; each head of keys is used by
///   `heads / kv_heads` consecutive heads of queries.
/// - `v`: `[batch, kv_heads, keys, value_width]`.
/// - `mask`: can be broadcast to `[batch, heads, queries, keys]`. A mask with the dtype of `q` is added to the scores.
///   A u8 mask hides the keys for which its element is not 0, as in candle-transformers.
/// - `do_causal`: if `true`, the last query sees all keys, and each query before it sees one key fewer than the next.
/// - `softcapping`: 1 or infinity for no cap. Otherwise the scores are replaced by `tanh(scores / softcapping) ·
///   softcapping` before the mask is applied.
/// - Result: `[batch, heads, queries, value_width]`.
///
/// f32 and f64 on the CPU use a single operation, which keeps the attention weights of each head for the backward pass.
/// With a trained mask, a cap, or other dtypes and devices, several of candle's operations are used. If a query sees no
/// key, its result is NaN, according to the formula. The gradients of keys and values are then also NaN, even if the
/// loss ignores that query. `candle_nn::ops::sdpa` runs only on Metal and has no gradient.
///
/// # Errors
/// Returns an error in these cases:
/// - The shapes or dtypes do not match, or the scores or the result would be too large.
/// - `do_causal` is `true` and there are more queries than keys.
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
    if autocast::widens(q) {
        let wide = |tensor: &Tensor| autocast::widened(tensor);
        let (q32, k, v) = (wide(q)?, wide(k)?, wide(v)?);
        let mask = mask.map(wide).transpose()?;
        return Attention::new((&q32, &k, &v), mask.as_ref(), do_causal, scale, softcapping)?
            .apply(&q32, &k, &v)?
            .to_dtype(q.dtype());
    }
    Attention::new((q, k, v), mask, do_causal, scale, softcapping)?.apply(q, k, v)
}
