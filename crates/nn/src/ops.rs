//! The functions of `candle_nn::ops`, all of them with gradients.
//!
//! `candle_nn::ops` has fused kernels that cut their inputs off from the graph: `softmax_last_dim`, `rms_norm`,
//! `layer_norm` and `sdpa` (and those of [`rotary_emb`](super::rotary_emb)). A model that uses them trains only the layers
//! after the last of them, although its loss falls. Gradients flow through those of this module. All others are re-exported
//! from candle_nn, so that one `use` line is enough:
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
//! `candle_nn::ops::dropout` is left out: its masks come from a generator that all replicas share.
//! [`Dropout`]'s are the same for any number of replicas.

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

/// Softmax over the last dimension of `[…, n]`, of any strides.
///
/// f32 and f64 on the CPU take one pass; other dtypes and devices take several operations of candle's. f16 and bf16 are
/// computed as f32: candle adds them up as they are, and of 4096 equal numbers its softmax has a sum of 2, or of 16.
///
/// # Errors
/// For a scalar; candle's, for dtypes that have no exponential.
#[doc(alias = "tf.nn.softmax")]
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    softmax::softmax_last_dim(xs)
}

/// Softmax over one dimension.
///
/// # Errors
/// As [`softmax_last_dim`], and where there is no such dimension.
#[doc(alias = "tf.nn.softmax")]
pub fn softmax<I: Dim>(xs: &Tensor, dim: I) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "softmax")?;
    let last = xs.rank() - 1;
    if dim == last {
        softmax_last_dim(xs)
    } else {
        // Also for an empty piece of a batch, of which candle's has no maximum.
        softmax_last_dim(&xs.transpose(dim, last)?)?.transpose(dim, last)?.contiguous()
    }
}

/// Rows of the last dimension scaled to a mean square of 1, times a weight `alpha` of `[n]`: what
/// [`RmsNorm`](super::RmsNorm) computes. `eps` is added to mean squares.
///
/// # Errors
/// Where shapes don't fit, and for operands of different dtypes.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    require_rows("rms_norm", xs, &[("alpha", alpha)])?;
    LayerNorm::rms_norm(alpha.clone(), eps.into()).forward(xs)
}

/// Rows of the last dimension moved to mean 0 and scaled to variance 1, times a weight `alpha`, plus a bias `beta`, both of
/// `[n]`: what [`LayerNorm`] computes. `eps` is added to variances.
///
/// # Errors
/// As [`rms_norm`].
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    require_rows("layer_norm", xs, &[("alpha", alpha), ("beta", beta)])?;
    LayerNorm::new(alpha.clone(), beta.clone(), eps.into()).forward(xs)
}

/// Refuses parameters that are not as long as rows, or of another dtype.
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

/// Attention: `softmax(q kᵀ · scale + mask) v`.
///
/// | | |
/// |---|---|
/// | `q` | `[batch, heads, queries, width]` |
/// | `k` | `[batch, kv_heads, keys, width]`; `kv_heads` divides `heads`, and each is for as many heads in turn |
/// | `v` | `[batch, kv_heads, keys, value_width]` |
/// | `mask` | broadcast to `[batch, heads, queries, keys]`: of the dtype of `q` it is added to the scores, of u8 it hides what is not 0, as the models of candle-transformers have it |
/// | `do_causal` | the last query sees all keys, each one before it one key less |
/// | `softcapping` | 1 or infinity for none; else scores become `tanh(scores / softcapping) · softcapping` before the mask |
/// | result | `[batch, heads, queries, value_width]` |
///
/// f32 and f64 on the CPU take one operation, which keeps the weights of each head for its backward; a mask that is trained,
/// a cap, other dtypes and devices take several of candle's. A query that sees no key is NaN, as by the formula, and so
/// are the gradients of keys and values then, even where the loss leaves that query out.
/// `candle_nn::ops::sdpa` runs on Metal only, and has no gradient.
///
/// # Errors
/// Where shapes or dtypes don't fit, and for a cap that is not positive.
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
