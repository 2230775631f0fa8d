//! Gradients of the operations that candle-nn 0.11.1 has for inference alone. Added by the project `distribute`.
//!
//! Half precision is computed in f32.

use candle::{bail, DType, Result, Tensor, D};

fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Returns the gradient of a softmax over the last dimension, whose result is `y`.
pub(crate) fn softmax(y: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let dtype = y.dtype();
    let (y, grad) = (
        y.detach().to_dtype(wide(dtype))?,
        grad.to_dtype(wide(dtype))?,
    );
    let mean = (&grad * &y)?.sum_keepdim(D::Minus1)?;
    (grad.broadcast_sub(&mean)? * y)?.to_dtype(dtype)
}

/// Returns the gradients of a layer norm or, without `remove_mean`, a root mean square norm: for rows and weight.
pub(crate) fn norm(
    xs: &Tensor,
    alpha: &Tensor,
    grad: &Tensor,
    eps: f32,
    remove_mean: bool,
) -> Result<(Tensor, Tensor)> {
    let (dtype, size) = (xs.dtype(), xs.dim(D::Minus1)?);
    let wide = |t: &Tensor| t.detach().to_dtype(wide(dtype));
    let mean = |t: &Tensor| t.sum_keepdim(D::Minus1)? / size as f64;
    let (xs, grad) = (wide(xs)?, wide(grad)?);
    let xs = if remove_mean {
        xs.broadcast_sub(&mean(&xs)?)?
    } else {
        xs
    };
    let scale = (mean(&xs.sqr()?)? + eps as f64)?.sqrt()?.recip()?;
    let normed = xs.broadcast_mul(&scale)?;
    let of_normed = grad.broadcast_mul(&wide(alpha)?)?;
    let along = mean(&(&of_normed * &normed)?)?;
    let mut of_xs = (&of_normed - normed.broadcast_mul(&along)?)?;
    if remove_mean {
        of_xs = of_xs.broadcast_sub(&mean(&of_normed)?)?;
    }
    let of_alpha = sum_of_rows(&(grad * normed)?)?;
    Ok((
        of_xs.broadcast_mul(&scale)?.to_dtype(dtype)?,
        of_alpha.to_dtype(dtype)?,
    ))
}

/// The sum of all rows along the last dimension, as for a bias.
pub(crate) fn sum_of_rows(t: &Tensor) -> Result<Tensor> {
    let size = t.dim(D::Minus1)?;
    let sum = t.to_dtype(wide(t.dtype()))?.reshape(((), size))?.sum(0)?;
    sum.to_dtype(t.dtype())
}

/// The three kinds of rotary embedding.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Rotary {
    Halves,
    Interleaved,
    Thd,
}

/// Returns the gradients of a rotary embedding: for its input and, if they are tracked, the tables.
pub(crate) fn rotary(
    kind: Rotary,
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    grad: &Tensor,
) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
    use crate::rotary_emb::{rope, rope_i, rope_thd};
    let back = match kind {
        Rotary::Halves => rope,
        Rotary::Interleaved => rope_i,
        Rotary::Thd => rope_thd,
    };
    // Rotated by the negative angles.
    let of_xs = back(&grad.contiguous()?, &cos.detach(), &sin.detach().neg()?)?;
    if !cos.track_op() && !sin.track_op() {
        return Ok((Some(of_xs), None, None));
    }
    let (heads, positions) = if kind == Rotary::Thd { (2, 1) } else { (1, 2) };
    let positions = xs.dim(positions)?;
    if cos.rank() == 3 && (cos.dim(1)? != positions || sin.dim(1)? != positions) {
        bail!("rope: trained tables of a batch have as many positions as the input")
    }
    let pairs = |t: &Tensor| -> Result<(Tensor, Tensor)> {
        let half = t.dim(D::Minus1)? / 2;
        if kind == Rotary::Interleaved {
            let t = t.reshape([&t.dims()[..3], &[half, 2]].concat())?;
            return Ok((t.narrow(4, 0, 1)?.squeeze(4)?, t.narrow(4, 1, 1)?.squeeze(4)?));
        }
        Ok((
            t.narrow(D::Minus1, 0, half)?,
            t.narrow(D::Minus1, half, half)?,
        ))
    };
    let ((x0, x1), (g0, g1)) = (pairs(&xs.detach())?, pairs(grad)?);
    let table = |of_pairs: Tensor, table: &Tensor| -> Result<Option<Tensor>> {
        let of_heads = of_pairs.sum(heads)?;
        if table.rank() == 3 {
            return Ok(Some(of_heads));
        }
        let unused = table.dim(0)? - positions;
        Ok(Some(of_heads.sum(0)?.pad_with_zeros(0, 0, unused)?))
    };
    let of_cos = table(((&g0 * &x0)? + (&g1 * &x1)?)?, cos)?;
    let of_sin = table(((&g1 * &x0)? - (&g0 * &x1)?)?, sin)?;
    Ok((Some(of_xs), of_cos, of_sin))
}

/// Attention of operations that have gradients, for tensors that are trained: of `[batch, heads, positions, width]`,
/// with fewer heads of keys than of queries if need be. With `causal`, a query sees the keys up to its own position and
/// so many more.
pub(crate) fn attention(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    scale: f32,
    causal: Option<usize>,
    mask: Option<&Tensor>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let (batch, heads, queries, _) = q.dims4()?;
    let (_, kv_heads, keys, _) = k.dims4()?;
    if heads % kv_heads != 0 {
        bail!("attention: {heads} heads of queries are no multiple of {kv_heads} of keys")
    }
    let spread = |t: &Tensor| -> Result<Tensor> {
        let width = t.dim(3)?;
        let shape = (batch, kv_heads, heads / kv_heads, keys, width);
        let t = t.unsqueeze(2)?.broadcast_as(shape)?;
        t.reshape((batch, heads, keys, width))?.contiguous()
    };
    let mut scores = (q.contiguous()?.matmul(&spread(k)?.t()?.contiguous()?)? * scale as f64)?;
    if let Some(cap) = softcap {
        scores = ((scores / cap as f64)?.tanh()? * cap as f64)?;
    }
    if let Some(more) = causal {
        let hidden = |i: usize| (0..keys).map(move |j| if j > i + more { f32::NEG_INFINITY } else { 0. });
        let hidden: Vec<f32> = (0..queries).flat_map(hidden).collect();
        let hidden = Tensor::from_vec(hidden, (queries, keys), q.device())?;
        scores = scores.broadcast_add(&hidden.to_dtype(q.dtype())?)?;
    }
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    crate::ops::softmax_last_dim(&scores)?.matmul(&spread(v)?)
}

/// Writes `src` into a cache at a position: in place, or by an operation that has gradients if `src` is trained.
pub(crate) fn write(cache: &mut Tensor, src: &Tensor, dim: usize, at: usize) -> Result<()> {
    if src.track_op() || cache.track_op() {
        *cache = cache.slice_scatter(src, dim, at)?;
        return Ok(());
    }
    cache.slice_set(src, dim, at)
}
