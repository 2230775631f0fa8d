//! The softmax of rows, as one fused operation each for the forward and the backward pass.

use super::exp::Exp;
use super::lanes;
use candle_core::{CpuStorage, CustomOp1, D, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{Number, is_native, operand, with_elements};
use std::marker::PhantomData;

/// The number of elements that are processed at once, in complete rows and at least one. This many elements stay in the
/// L1 cache, and several narrow rows share a register.
const BLOCK: usize = 2048;

/// Replaces each row of `width` numbers with its softmax.
pub(super) fn softmax_rows<T: Exp>(numbers: &mut [T], width: usize) {
    if width == 0 {
        return;
    }
    for block in numbers.chunks_mut((BLOCK / width).max(1) * width) {
        for row in block.chunks_exact_mut(width) {
            let max = lanes::max(row);
            row.iter_mut().for_each(|x| *x -= max);
        }
        block.iter_mut().for_each(|x| *x = x.exp_of_negative());
        for row in block.chunks_exact_mut(width) {
            let inverse = T::of(1.) / lanes::sum(row, row, |x, _| x);
            row.iter_mut().for_each(|x| *x *= inverse);
        }
    }
}

/// Computes the gradient of rows of `width` numbers from their softmax `y` and the gradient g of the softmax.
/// `gradient` contains g, which is replaced by the gradient of the rows, y (g - Σ g y).
pub(super) fn gradient_rows<T: Number>(y: &[T], gradient: &mut [T], width: usize) {
    if width == 0 {
        return;
    }
    for (y, gradient) in y.chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
        let along = lanes::sum(gradient, y, |g, y| g * y);
        gradient.iter_mut().zip(y).for_each(|(g, y)| *g = *y * (*g - along));
    }
}

/// Implements [`ops::softmax_last_dim`](super::ops::softmax_last_dim).
pub(super) fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    if xs.rank() == 0 {
        bail!("softmax-last-dim: a scalar has no last dimension");
    }
    if xs.dtype().is_int() {
        bail!("softmax-last-dim: {:?} has no exponential: convert it with to_dtype", xs.dtype());
    }
    match (xs.dtype(), is_native(xs)) {
        (DType::F32, true) => xs.contiguous()?.apply_op1(SoftmaxLastDim(PhantomData::<f32>)),
        (DType::F64, true) => xs.contiguous()?.apply_op1(SoftmaxLastDim(PhantomData::<f64>)),
        (DType::F16 | DType::BF16, _) => {
            // Sums in half precision stop growing: 1 + 1 + … ends at 2048 (f16) or 256 (bf16).
            softmax_last_dim(&xs.to_dtype(DType::F32)?)?.to_dtype(xs.dtype())
        }
        // candle's softmax fails without elements.
        _ if xs.elem_count() == 0 => Ok(xs.clone()),
        _ => candle_nn::ops::softmax(xs, D::Minus1),
    }
}

struct SoftmaxLastDim<T>(PhantomData<T>);

impl<T: Exp> CustomOp1 for SoftmaxLastDim<T> {
    fn name(&self) -> &'static str {
        "softmax-last-dim"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = operand::<T>(storage, layout)?.to_vec();
        softmax_rows(&mut y, layout.dims().last().copied().unwrap_or(0));
        Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, y: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let width = y.dim(D::Minus1)?;
        let mut gradient = with_elements(&upstream.contiguous()?, <[T]>::to_vec)?;
        with_elements(y, |y| gradient_rows(y, &mut gradient, width))?;
        Tensor::from_vec(gradient, y.shape(), y.device()).map(Some)
    }
}
