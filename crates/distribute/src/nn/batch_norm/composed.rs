//! The moments, the operation and its gradient by operations of candle's, on any device.
//!
//! They make the same calls of all replicas as those on the CPU, so that replicas on different devices can meet.

use super::moments::Moments;
use super::normalize::Normalize;
use crate::known::Known;
use crate::transfer::to_device;
use candle_core::{D, DType, Device, Result, Tensor};

/// As [`Moments::of`], of `x` `[rows, channels, …]`.
pub(super) fn moments(x: &Tensor) -> Result<Moments> {
    let channels = x.dim(1)?;
    if x.elem_count() == 0 {
        return Ok(Moments { count: 0., mean: vec![0.; channels], deviation: vec![0.; channels] });
    }
    let x = columns(x)?;
    let count = x.dim(1)? as f64;
    let mean = (x.sum_keepdim(1)? / count)?;
    let deviation = x.broadcast_sub(&mean)?.sqr()?.sum(1)?;
    Ok(Moments { count, mean: on_host(&mean.squeeze(1)?)?, deviation: on_host(&deviation)? })
}

/// The operation on `x`, `weight` and `bias`, with the gradient behind it.
pub(super) fn normalize(operation: Normalize, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let result = if x.elem_count() == 0 { x.detach() } else { normalized(&operation, x, weight, bias)? };
    let backward = move |[x, weight, _]: [&Tensor; 3], _: &Tensor, upstream: &Tensor| {
        gradients(&operation, x, weight, upstream).map(|all| all.map(Some))
    };
    x.apply_op3(weight, bias, Known::new("batch-norm", result, backward))
}

fn normalized(operation: &Normalize, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let along = Along::new(operation, x)?;
    let (of_weight, of_bias) = (along.channels(&weight.detach())?, along.channels(&bias.detach())?);
    let scale = (&of_weight * &along.inverse)?;
    let y = along.wide(x)?.broadcast_sub(&along.mean)?.broadcast_mul(&scale)?.broadcast_add(&of_bias)?;
    y.to_dtype(x.dtype())
}

/// Statistics in the shape that broadcasts to `x`, of the dtype in which sums are made.
struct Along {
    dtype: DType,
    shape: Vec<usize>,
    mean: Tensor,
    inverse: Tensor,
}

impl Along {
    fn new(operation: &Normalize, x: &Tensor) -> Result<Self> {
        let mut shape = vec![1; x.rank()];
        shape[1] = x.dim(1)?;
        let dtype = widest(x.device());
        let of = |numbers: &[f64]| on_device(numbers, x.device())?.reshape(shape.as_slice());
        Ok(Self { dtype, mean: of(&operation.mean)?, inverse: of(&operation.inverse)?, shape: shape.clone() })
    }

    fn wide(&self, x: &Tensor) -> Result<Tensor> {
        x.detach().to_dtype(self.dtype)
    }

    fn channels(&self, of_channels: &Tensor) -> Result<Tensor> {
        of_channels.to_dtype(self.dtype)?.reshape(self.shape.as_slice())
    }
}

/// As [`Normalize::gradients`].
fn gradients(operation: &Normalize, x: &Tensor, weight: &Tensor, upstream: &Tensor) -> Result<[Tensor; 3]> {
    let Normalize { count, remove_mean, .. } = *operation;
    let (along, channels) = (Along::new(operation, x)?, x.dim(1)?);
    let (far, upstream) = (along.wide(x)?.broadcast_sub(&along.mean)?, along.wide(upstream)?);
    // One row of numbers for each replica: sums of the gradient, and of its products with normalised elements.
    let mine = if x.elem_count() == 0 {
        Tensor::zeros(2 * channels, DType::F64, &Device::Cpu)?
    } else {
        let products = (&far * &upstream)?.broadcast_mul(&along.inverse)?;
        let sums = Tensor::cat(&[columns(&upstream)?.sum(1)?, columns(&products)?.sum(1)?], 0)?;
        sums.to_device(&Device::Cpu)?.to_dtype(DType::F64)?
    };
    let all = on_device(&operation.sum(&mine)?, x.device())?;
    let sum = |start| along.channels(&all.narrow(0, start, channels)?);
    let scale = (along.channels(&weight.detach())? * &along.inverse)?;
    let through_variance = ((&scale * &along.inverse)? * (sum(channels)? / count)?)?;
    let mut gradient = (upstream.broadcast_mul(&scale)? - far.broadcast_mul(&through_variance)?)?;
    if remove_mean {
        gradient = gradient.broadcast_sub(&(&scale * (sum(0)? / count)?)?)?;
    }
    let of = |start| to_device(&mine.narrow(0, start, channels)?.to_dtype(weight.dtype())?, weight.device());
    Ok([gradient.to_dtype(x.dtype())?, of(channels)?, of(0)?])
}

/// `[rows, channels, …]` as `[channels, elements]`, of the dtype in which sums are made.
fn columns(x: &Tensor) -> Result<Tensor> {
    let columns = x.detach().transpose(0, 1)?.contiguous()?;
    let columns = if columns.rank() > 2 { columns.flatten(1, D::Minus1)? } else { columns };
    columns.to_dtype(widest(x.device()))
}

/// Metal has no f64.
fn widest(device: &Device) -> DType {
    if device.is_metal() { DType::F32 } else { DType::F64 }
}

fn on_host(numbers: &Tensor) -> Result<Vec<f64>> {
    numbers.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()
}

fn on_device(numbers: &[f64], device: &Device) -> Result<Tensor> {
    to_device(&Tensor::new(numbers, &Device::Cpu)?.to_dtype(widest(device))?, device)
}
