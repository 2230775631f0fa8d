//! Binary cross-entropy of logits by operations of candle's, on any device, with a gradient that is as exact.

use crate::known;
use crate::scalars::{choose, sum};
use candle_core::{CpuStorage, CudaStorage, CustomOp2, Layout, MetalStorage, Result, Shape, Tensor};

/// The mean over the pairs of logits and targets of one shape and dtype.
pub(super) fn composed(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let loss = mean(&logits.detach(), &targets.detach())?;
    logits.contiguous()?.apply_op2(&targets.contiguous()?, Logistic { loss })
}

/// max(x, 0) - x z + ln(1 + e⁻ˡˣˡ). candle has no ln(1 + e): with u = 1 + e as it is rounded, it is e ln(u) / (u - 1), and e where u is 1.
fn mean(x: &Tensor, z: &Tensor) -> Result<Tensor> {
    let e = x.abs()?.neg()?.exp()?;
    let u = (&e + 1.)?;
    let above = (&u - 1.)?;
    let is_one = above.eq(&above.zeros_like()?)?;
    let quotient = ((&e * u.log()?)? / choose(&is_one, &u, &above)?)?;
    let rest = choose(&is_one, &e, &quotient)?;
    sum(&((x.relu()? - (x * z)?)? + rest)?)? / x.elem_count() as f64
}

/// The operation, as candle takes it, with its result.
struct Logistic {
    loss: Tensor,
}

impl CustomOp2 for Logistic {
    fn name(&self) -> &'static str {
        "binary cross-entropy"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        known::cpu(&self.loss)
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        known::cuda(&self.loss)
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        known::metal(&self.loss)
    }

    fn bwd(
        &self,
        x: &Tensor,
        z: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (x, z) = (x.detach(), z.detach());
        let each = (upstream / x.elem_count() as f64)?;
        let of_logits = (candle_nn::ops::sigmoid(&x)? - z)?.broadcast_mul(&each)?;
        Ok((Some(of_logits), Some(x.neg()?.broadcast_mul(&each)?)))
    }
}
