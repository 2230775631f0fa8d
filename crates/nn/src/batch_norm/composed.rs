//! The moments, the operation and its gradient by operations of candle's, on any device.
//!
//! A lone replica's numbers stay there. Several make the same calls as those on the CPU, so that replicas on different devices can meet.
//!
//! All is computed in the dtype of `x`. A mean far from 0, rounded to it, would be further from the elements than they are from each other:
//! so it is two numbers, and the smaller one, which is the same for all elements of a channel, goes into the constants of the channel.

use super::moments;
use super::normalize::{self, Gradient};
use candle_core::{DType, Device, Result, Tensor};
use distribute_base::internal::{Known, to_device, to_host};

/// Count, means and squared deviations from the means, of each channel, in the shape that broadcasts to `x`.
pub(super) struct Moments {
    count: f64,
    mean: Tensor,
    /// What the mean is beside `mean`.
    rest: Tensor,
    deviation: Tensor,
}

impl Moments {
    /// Of `x` `[rows, channels, …]`, which has elements.
    pub(super) fn of(x: &Tensor) -> Result<Self> {
        let x = x.detach();
        let count = (x.elem_count() / x.dim(1)?) as f64;
        let mean = (sum(&x)? / count)?;
        let far = x.broadcast_sub(&mean)?;
        let rest = (sum(&far)? / count)?;
        // Rounded, it may be below 0.
        let deviation = (sum(&far.sqr()?)? - (rest.sqr()? * count)?)?.abs()?;
        Ok(Self { count, mean, rest, deviation })
    }

    /// On the host: one copy, for which this waits.
    pub(super) fn on_host(&self) -> Result<moments::Moments> {
        let all = Tensor::cat(&[&self.mean, &self.rest, &self.deviation], 0)?.flatten_from(1)?;
        let all = to_host(&all)?.to_dtype(DType::F64)?;
        let mean = (all.get(0)? + all.get(1)?)?.to_vec1()?;
        Ok(moments::Moments { count: self.count, mean, deviation: all.get(2)?.to_vec1()? })
    }

    /// As [`moments::Moments::running`].
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

    /// What normalises `x` by its own moments.
    pub(super) fn normalize(self, remove_mean: bool, eps: f64) -> Result<Normalize> {
        let inverse = (self.variance(remove_mean)? + eps)?.sqrt()?.recip()?;
        let Self { count, mean, rest, .. } = self;
        let [mean, rest] = if remove_mean { [mean, rest] } else { [mean.zeros_like()?, rest.zeros_like()?] };
        Ok(Normalize { mean, rest, inverse, count, remove_mean, gradient: None })
    }
}

/// As [`normalize::Normalize`], with statistics in the shape that broadcasts to `x`, where it is.
pub(super) struct Normalize {
    mean: Tensor,
    /// What the mean is beside `mean`.
    rest: Tensor,
    inverse: Tensor,
    count: f64,
    remove_mean: bool,
    gradient: Option<Gradient>,
}

impl Normalize {
    /// The operation with statistics that are on the host.
    pub(super) fn of_all(operation: normalize::Normalize, x: &Tensor) -> Result<Self> {
        let normalize::Normalize { mean, inverse, count, remove_mean, gradient } = operation;
        let all = Tensor::from_vec([mean, inverse].concat(), (2, x.dim(1)?), &Device::Cpu)?;
        let rounded = all.to_dtype(x.dtype())?;
        let rest = (all - rounded.to_dtype(DType::F64)?)?.to_dtype(x.dtype())?;
        let all = to_device(&Tensor::cat(&[rounded, rest], 0)?, x.device())?;
        // Both, and what they are beside that, of which the mean's alone counts.
        let row = |number| all.get(number)?.reshape(of_channels(x));
        Ok(Self { mean: row(0)?, rest: row(2)?, inverse: row(1)?, count, remove_mean, gradient })
    }

    /// The operation on `x`, `weight` and `bias`, with the gradient behind it.
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

    /// As [`normalize::Normalize::gradients`].
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

/// The sums over all elements of each channel of `[rows, channels, …]`.
fn sum(x: &Tensor) -> Result<Tensor> {
    let others: Vec<usize> = (0..x.rank()).filter(|dimension| *dimension != 1).collect();
    x.sum_keepdim(others)
}

/// The shape in which numbers of each channel broadcast to `[rows, channels, …]`.
fn of_channels(x: &Tensor) -> Vec<usize> {
    x.dims().iter().enumerate().map(|(dimension, len)| if dimension == 1 { *len } else { 1 }).collect()
}
