//! Batch-norm's moments, operation and gradient by candle's operations, on any device.
//!
//! A single replica's values stay on the device. Several replicas make the same collective calls as replicas
//! on the CPU, so replicas on different devices can be mixed.
//!
//! All values are computed in the dtype of `x`. A mean far from 0, rounded to that dtype, could be further
//! from the elements than they are from each other. So the mean is a sum of two numbers. The smaller one,
//! which is the same for all elements of a channel, goes into the constants of the channel.

use super::moments;
use super::normalize::{self, Gradient};
use candle_core::{DType, Device, Result, Tensor};
use distribute_base::internal::{Known, to_device, to_host};

/// The count, mean and squared deviations of each channel, in a shape that broadcasts to `x`.
pub(super) struct Moments {
    count: f64,
    mean: Tensor,
    /// The rest of the mean, to be added to `mean`.
    rest: Tensor,
    deviation: Tensor,
}

impl Moments {
    /// Computes the moments of `x`, `[rows, channels, …]`, which has to have elements.
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

    /// Copies the moments to the host in one transfer, and waits for it.
    pub(super) fn on_host(&self) -> Result<moments::Moments> {
        let all = Tensor::cat(&[&self.mean, &self.rest, &self.deviation], 0)?.flatten_from(1)?;
        let all = to_host(&all)?.to_dtype(DType::F64)?;
        let mean = (all.get(0)? + all.get(1)?)?.to_vec1()?;
        Ok(moments::Moments { count: self.count, mean, deviation: all.get(2)?.to_vec1()? })
    }

    /// Returns the same as [`moments::Moments::running`].
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

    /// Returns the operation that normalizes `x` by its own moments.
    pub(super) fn normalize(self, remove_mean: bool, eps: f64) -> Result<Normalize> {
        let inverse = (self.variance(remove_mean)? + eps)?.sqrt()?.recip()?;
        let Self { count, mean, rest, .. } = self;
        let [mean, rest] = if remove_mean { [mean, rest] } else { [mean.zeros_like()?, rest.zeros_like()?] };
        Ok(Normalize { mean, rest, inverse, count, remove_mean, gradient: None })
    }
}

/// The operation [`normalize::Normalize`] with statistics in a shape that broadcasts to `x`, on its device.
pub(super) struct Normalize {
    mean: Tensor,
    /// The rest of the mean, to be added to `mean`.
    rest: Tensor,
    inverse: Tensor,
    count: f64,
    remove_mean: bool,
    gradient: Option<Gradient>,
}

impl Normalize {
    /// Creates the operation from statistics on the host.
    pub(super) fn of_all(operation: normalize::Normalize, x: &Tensor) -> Result<Self> {
        let normalize::Normalize { mean, inverse, count, remove_mean, gradient } = operation;
        let all = Tensor::from_vec([mean, inverse].concat(), (2, x.dim(1)?), &Device::Cpu)?;
        let rounded = all.to_dtype(x.dtype())?;
        let rest = (all - rounded.to_dtype(DType::F64)?)?.to_dtype(x.dtype())?;
        let all = to_device(&Tensor::cat(&[rounded, rest], 0)?, x.device())?;
        // Rows 0 and 1 are the rounded numbers, 2 and 3 their rests. Only the rest of the mean matters.
        let row = |number| all.get(number)?.reshape(of_channels(x));
        Ok(Self { mean: row(0)?, rest: row(2)?, inverse: row(1)?, count, remove_mean, gradient })
    }

    /// Applies the operation to `x`, `weight` and `bias`, with its gradient.
    pub(super) fn apply(self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let result = if x.elem_count() == 0 { x.detach() } else { self.normalized(x, weight, bias)? };
        let backward = move |[x, weight, _]: [&Tensor; 3], _: &Tensor, upstream: &Tensor| {
            self.gradients(&x.detach(), weight, &upstream.detach()).map(|all| all.map(Some))
        };
        x.apply_op3(weight, bias, Known::new("batch-norm", result, backward))
    }

    fn normalized(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let scale = self.scale(x, weight)?;
        let shift = (bias.detach().reshape(of_channels(x))? - (&self.rest * &scale)?)?;
        x.detach().broadcast_sub(&self.mean)?.broadcast_mul(&scale)?.broadcast_add(&shift)
    }

    fn scale(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        weight.detach().reshape(of_channels(x))? * &self.inverse
    }

    /// Computes the gradients like [`normalize::Normalize::gradients`].
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

/// Sums over all elements of each channel of `[rows, channels, …]`.
fn sum(x: &Tensor) -> Result<Tensor> {
    let others: Vec<usize> = (0..x.rank()).filter(|dimension| *dimension != 1).collect();
    x.sum_keepdim(others)
}

/// Returns the shape in which a number for each channel broadcasts to `[rows, channels, …]`.
fn of_channels(x: &Tensor) -> Vec<usize> {
    x.dims().iter().enumerate().map(|(dimension, len)| if dimension == 1 { *len } else { 1 }).collect()
}
