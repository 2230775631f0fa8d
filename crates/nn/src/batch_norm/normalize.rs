//! The operation of batch norm in training, and its gradient, which is a collective.

use super::moments::{Planes, sum, with_planes};
use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor, WithDType, bail};
use distribute_base::internal::operand;
use distribute_core::ReplicaContext;
use distribute_core::internal::to_candle_error;
use distribute_tensor::ReduceOp;
use std::panic::Location;
use std::sync::Arc;

/// The operation y = (x - mean) * inverse deviation * weight + bias, with statistics over all replicas.
#[derive(Clone)]
pub(super) struct Normalize {
    pub(super) mean: Vec<f64>,
    /// The inverse square root of the variance plus epsilon, for each channel.
    pub(super) inverse: Vec<f64>,
    /// The number of elements per channel, over all replicas.
    pub(super) count: f64,
    /// Whether the mean is removed. If not, `mean` is 0.
    pub(super) remove_mean: bool,
    /// The collective that the gradient needs; `None` if there are no other replicas.
    pub(super) gradient: Option<Gradient>,
}

/// The collective in which the replicas add up values that their gradients need.
#[derive(Clone)]
pub(super) struct Gradient {
    pub(super) context: ReplicaContext,
    pub(super) call: Call,
    /// A handle whose reference count shows whether a graph still contains this operation.
    pub(super) graph: Arc<()>,
}

impl Gradient {
    /// Returns the sums over all replicas. `mine` are the sums of this replica.
    pub(super) fn sum(&self, mine: &Tensor) -> Result<Tensor> {
        self.call.sum(&self.context, mine).map_err(to_candle_error)
    }
}

/// The identity of the forward call to which the gradient belongs.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) at: &'static Location<'static>,
}

impl Call {
    /// Returns the sums over all replicas, in a collective. `sums` are the sums of this replica.
    pub(super) fn sum(self, context: &ReplicaContext, sums: &Tensor) -> distribute_base::Result<Tensor> {
        let detail = format!("SUM, the gradient of batch-norm, call {}", self.number + 1);
        context.all_reduce_gradient(detail, ReduceOp::Sum, sums, self.at)
    }
}

impl Normalize {
    fn forward<T: WithDType>(&self, inputs: [(&CpuStorage, &Layout); 3]) -> Result<CpuStorage> {
        let [x, weight, bias] = inputs.map(|(storage, layout)| operand::<T>(storage, layout));
        let (weight, bias) = (weight?, bias?);
        let x = Planes::new(x?, inputs[0].1.dims());
        let mut out = Vec::with_capacity(x.elements.len());
        for (channel, plane) in x.iter() {
            // Computed in f64: a mean far from 0, rounded to T, could be further from the elements than they
            // are from each other.
            let (mean, bias) = (self.mean[channel], bias[channel].to_f64());
            let scale = weight[channel].to_f64() * self.inverse[channel];
            out.extend(plane.iter().map(|x| T::from_f64((x.to_f64() - mean) * scale + bias)));
        }
        Ok(T::to_cpu_storage_owned(out))
    }

    /// Computes two sums for each channel on this replica: the sum of the upstream gradient, and the sum of its product
    /// with the normalized x.
    fn sums<T: WithDType>(&self, x: Planes<'_, T>, upstream: Planes<'_, T>) -> Vec<f64> {
        let mut sums = vec![0.; 2 * x.channels];
        for ((channel, x), (_, upstream)) in x.iter().zip(upstream.iter()) {
            let mean = self.mean[channel];
            let products = x.iter().zip(upstream).map(|(x, up)| (x.to_f64() - mean) * up.to_f64());
            sums[channel] += sum(upstream, |up| up);
            sums[channel + self.mean.len()] += products.sum::<f64>() * self.inverse[channel];
        }
        sums
    }

    fn backward<T: WithDType>(
        &self,
        x: Planes<'_, T>,
        weight: &[T],
        upstream: Planes<'_, T>,
        sums: &[f64],
    ) -> Vec<T> {
        let mut out = Vec::with_capacity(x.elements.len());
        for ((channel, x), (_, upstream)) in x.iter().zip(upstream.iter()) {
            let inverse = self.inverse[channel];
            let scale = weight[channel].to_f64() * inverse;
            let through_mean = if self.remove_mean { scale * sums[channel] / self.count } else { 0. };
            let through_variance = scale * inverse * sums[self.mean.len() + channel] / self.count;
            let mean = self.mean[channel];
            let gradient =
                |x: f64, upstream: f64| scale * upstream - through_variance * (x - mean) - through_mean;
            out.extend(x.iter().zip(upstream).map(|(x, up)| T::from_f64(gradient(x.to_f64(), up.to_f64()))));
        }
        out
    }

    fn gradients<T: WithDType>(&self, x: &Tensor, weight: &Tensor, upstream: &Tensor) -> Result<[Tensor; 3]> {
        let channels = self.mean.len();
        let mine = with_planes::<T, _>(x, |x| with_planes::<T, _>(upstream, |up| self.sums(x, up)))??;
        let mine = Tensor::from_vec(mine, 2 * channels, &Device::Cpu)?;
        let all =
            self.gradient.as_ref().map_or(Ok(mine.clone()), |gradient| gradient.sum(&mine))?.to_vec1()?;
        let scale = weight.to_vec1::<T>()?;
        let dx = with_planes::<T, _>(x, |x| {
            with_planes::<T, _>(upstream, |up| self.backward(x, &scale, up, &all))
        })??;
        let of = |start| mine.narrow(0, start, channels)?.to_dtype(T::DTYPE);
        Ok([Tensor::from_vec(dx, x.shape(), &Device::Cpu)?, of(channels)?, of(0)?])
    }
}

impl CustomOp3 for Normalize {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
        bias: &CpuStorage,
        of_bias: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = [(x, layout), (weight, of_weight), (bias, of_bias)];
        let normalized = match x {
            CpuStorage::F32(_) => self.forward::<f32>(inputs),
            CpuStorage::F64(_) => self.forward::<f64>(inputs),
            _ => bail!("batch-norm: the input must have a float dtype"),
        };
        Ok((normalized?, layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let upstream = upstream.contiguous()?;
        let [x, weight, bias] = match x.dtype() {
            candle_core::DType::F32 => self.gradients::<f32>(x, weight, &upstream)?,
            _ => self.gradients::<f64>(x, weight, &upstream)?,
        };
        Ok((Some(x), Some(weight), Some(bias)))
    }
}
