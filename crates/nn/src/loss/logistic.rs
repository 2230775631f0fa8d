//! The binary cross-entropy of logits with candle's operations, on any device. Loss and gradient are exact even for
//! large logits.

use candle_core::{Result, Tensor};
use distribute_base::internal::{PrecomputedOp, choose, sum};

/// Computes the mean binary cross-entropy of logits and targets with the same shape and dtype, with its gradients.
pub(super) fn composed(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let result = mean(&logits.detach(), &targets.detach())?;
    let backward = |[x, z]: [&Tensor; 2], _: &Tensor, upstream: &Tensor| {
        let (is_trained, x, z) = (z.track_op(), x.detach(), z.detach());
        let each = (upstream / x.elem_count() as f64)?;
        let of_logits = (candle_nn::ops::sigmoid(&x)? - z)?.broadcast_mul(&each)?;
        let target_gradient = is_trained.then(|| x.neg()?.broadcast_mul(&each)).transpose()?;
        Ok([Some(of_logits), target_gradient])
    };
    logits
        .contiguous()?
        .apply_op2(&targets.contiguous()?, PrecomputedOp::new("binary cross-entropy", result, backward))
}

/// Computes the mean of max(x, 0) - x z + ln(1 + e), for e = exp(-|x|).
///
/// candle has no function that computes ln(1 + e) exactly. Let u be 1 + e after rounding: ln(1 + e) is computed as e
/// ln(u) / (u - 1), or as e if u is 1.
fn mean(x: &Tensor, z: &Tensor) -> Result<Tensor> {
    let e = x.abs()?.neg()?.exp()?;
    let u = (&e + 1.)?;
    let above = (&u - 1.)?;
    let is_one = above.eq(&above.zeros_like()?)?;
    let quotient = ((&e * u.log()?)? / choose(&is_one, &u, &above)?)?;
    let rest = choose(&is_one, &e, &quotient)?;
    sum(&((x.relu()? - (x * z)?)? + rest)?)? / x.elem_count() as f64
}
