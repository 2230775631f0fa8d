//! The moments, the operation and the gradient of batch norm, computed with candle's operations on any device.
//!
//! With a single replica, all values stay on its device. Several replicas make the same collective calls as replicas on
//! the CPU, so they can be on different kinds of devices.
//!
//! All values are computed in the dtype of `x`. If the mean is far from 0, rounding it to that dtype may change it by
//! more than the distance between elements. The mean is therefore represented as a sum of two numbers. The smaller
//! number, which is the same for all elements of a channel, becomes part of the channel's constants.

use super::moments;
use super::normalize::{self, Gradient};
use candle_core::{DType, Device, Result, Tensor};
use distribute_base::internal::{PrecomputedOp, to_device, to_host};

/// The number of values per channel, and each channel's mean and sum of squared deviations, in a shape that can be
/// broadcast to `x`.
pub(super) struct Moments {
    count: f64,
    mean: Tensor,
    /// The smaller part of the mean, which must be added to `mean`.
    rest: Tensor,
    deviation: Tensor,
}

impl Moments {
    /// Computes the moments of `x`, which has shape `[rows, channels, …]` and must not be empty.
    pub(super) fn of(x: &Tensor) -> Result<Self> {
        let x = x.detach();
        let count = (x.elem_count() / x.dim(1)?) as f64;
        let mean = (sum(&x)? / count)?;
        let far = x.broadcast_sub(&mean)?;
        let rest = (sum(&far)? / count)?;
        // Rounding can make the difference negative.
        let deviation = (sum(&far.sqr()?)? - (rest.sqr()? * count)?)?.abs()?;
        Ok(Self { count, mean, rest, deviation })
    }

    /// Copies the moments to the host in a single transfer. Waits for the device.
    pub(super) fn on_host(&self) -> Result<moments::Moments> {
        let all = Tensor::cat(&[&self.mean, &self.rest, &self.deviation], 0)?.flatten_from(1)?;
        let all = to_host(&all)?.to_dtype(DType::F64)?;
        let mean = (all.get(0)? + all.get(1)?)?.to_vec1()?;
        Ok(moments::Moments { count: self.count, mean, deviation: all.get(2)?.to_vec1()? })
    }

    /// Returns the values towards which the running statistics move, like [`moments::Moments::running`].
    pub(super) fn running(&self, remove_mean: bool) -> Result<[Option<Tensor>; 2]> {
        let mean = remove_mean.then(|| (&self.mean + &self.rest)?.flatten_all()).transpose()?;
        let unbiased = self.count / (self.count - 1.);
        let variance = || (self.variance(remove_mean)? * unbiased)?.flatten_all();
        Ok([mean, (self.count > 1.).then(variance).transpose()?])
    }

    fn variance(&self, remove_mean: bool) -> Result<Tensor> {
        let variance = (&self.deviation / self.count)?;
        if remove_mean { Ok(variance) } else { variance + (&self.mean + &self.rest)?.sqr()? }
    }

    /// Returns the operation that normalizes `x` with the moments.
    pub(super) fn normalize(self, remove_mean: bool, eps: f64) -> Result<Normalize> {
        let inverse = (self.variance(remove_mean)? + eps)?.sqrt()?.recip()?;
        let Self { count, mean, rest, .. } = self;
        let [mean, rest] = if remove_mean { [mean, rest] } else { [mean.zeros_like()?, rest.zeros_like()?] };
        Ok(Normalize { mean, rest, inverse, count, remove_mean, gradient: None })
    }
}

/// The operation [`normalize::Normalize`] with statistics on the device of `x`, in a shape that can be broadcast to
/// it.
pub(super) struct Normalize {
    mean: Tensor,
    /// The smaller part of the mean, which must be added to `mean`.
    rest: Tensor,
    inverse: Tensor,
    count: f64,
    remove_mean: bool,
    gradient: Option<Gradient>,
}

impl Normalize {
    /// Creates the operation from the statistics over all replicas. The statistics are on the host.
    pub(super) fn from_replicas(operation: normalize::Normalize, x: &Tensor) -> Result<Self> {
        let normalize::Normalize { mean, inverse, count, remove_mean, gradient } = operation;
        let all = Tensor::from_vec([mean, inverse].concat(), (2, x.dim(1)?), &Device::Cpu)?;
        let rounded = all.to_dtype(x.dtype())?;
        let rest = (all - rounded.to_dtype(DType::F64)?)?.to_dtype(x.dtype())?;
        let all = to_device(&Tensor::cat(&[rounded, rest], 0)?, x.device())?;
        // Rows 0 and 1 are the rounded numbers, 2 and 3 their rests. Only the rest of the mean matters.
        let row = |number| all.get(number)?.reshape(of_channels(x));
        Ok(Self { mean: row(0)?, rest: row(2)?, inverse: row(1)?, count, remove_mean, gradient })
    }

    /// Applies the operation to `x`, `weight` and `bias`, and adds its gradient to the graph.
    pub(super) fn apply(self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let result = if x.elem_count() == 0 { x.detach() } else { self.normalized(x, weight, bias)? };
        let backward = move |[x, weight, _]: [&Tensor; 3], _: &Tensor, upstream: &Tensor| {
            self.gradients(&x.detach(), weight, &upstream.detach()).map(|all| all.map(Some))
        };
        x.apply_op3(weight, bias, PrecomputedOp::new("batch-norm", result, backward))
    }

    fn normalized(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let scale = self.scale(x, weight)?;
        let shift = (bias.detach().reshape(of_channels(x))? - (&self.rest * &scale)?)?;
        x.detach().broadcast_sub(&self.mean)?.broadcast_mul(&scale)?.broadcast_add(&shift)
    }

    fn scale(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        weight.detach().reshape(of_channels(x))? * &self.inverse
    }

    /// Computes the same gradients as [`normalize::Normalize`]. With several replicas, this is a collective, in which
    /// an empty `x` contributes zeros.
    fn gradients(&self, x: &Tensor, weight: &Tensor, upstream: &Tensor) -> Result<[Tensor; 3]> {
        let channels = x.dim(1)?;
        if x.elem_count() == 0 {
            let none = Tensor::zeros(2 * channels, DType::F64, &Device::Cpu)?;
            if let Some(gradient) = &self.gradient {
                gradient.sum(&none)?;
            }
            let none = weight.zeros_like()?;
            return Ok([x.clone(), none.clone(), none]);
        }
        let far = x.broadcast_sub(&self.mean)?;
        let of_bias = sum(upstream)?;
        let products = (sum(&(&far * upstream)?)? - (&self.rest * &of_bias)?)?;
        let of_weight = (products * &self.inverse)?;
        let [all_of_bias, all_of_weight] = match &self.gradient {
            None => [of_bias.clone(), of_weight.clone()],
            Some(gradient) => {
                let mine = Tensor::cat(&[of_bias.flatten_all()?, of_weight.flatten_all()?], 0)?;
                let all = gradient.sum(&to_host(&mine)?.to_dtype(DType::F64)?)?;
                let all = to_device(&all.to_dtype(x.dtype())?, x.device())?;
                let part = |start| all.narrow(0, start, channels)?.reshape(of_channels(x));
                [part(0)?, part(channels)?]
            }
        };
        let scale = self.scale(x, weight)?;
        let through_variance = ((&scale * &self.inverse)? * (all_of_weight / self.count)?)?;
        let mut constant = (&self.rest * &through_variance)?.neg()?;
        if self.remove_mean {
            constant = (constant + (&scale * (all_of_bias / self.count)?)?)?;
        }
        let gradient = (upstream.broadcast_mul(&scale)? - far.broadcast_mul(&through_variance)?)?;
        Ok([gradient.broadcast_sub(&constant)?, of_weight.flatten_all()?, of_bias.flatten_all()?])
    }
}

/// Sums the elements of each channel of `x`, which has shape `[rows, channels, …]`.
fn sum(x: &Tensor) -> Result<Tensor> {
    let others: Vec<usize> = (0..x.rank()).filter(|dimension| *dimension != 1).collect();
    x.sum_keepdim(others)
}

/// Returns the shape with which one number for each channel can be broadcast to `x`.
fn of_channels(x: &Tensor) -> Vec<usize> {
    x.dims().iter().enumerate().map(|(dimension, len)| if dimension == 1 { *len } else { 1 }).collect()
}
