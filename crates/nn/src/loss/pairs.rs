//! Losses that are means over pairs of a prediction and a target, as one fused operation each for the loss
//! and for each of the two gradients.

use crate::exp::Exp;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use distribute_base::internal::{operand, with_elements};
use std::marker::PhantomData;

/// The loss of a pair of a prediction x and a target z.
#[derive(Clone, Copy, Debug)]
pub(super) enum PairLoss {
    /// The squared error (x - z)².
    Squared,
    /// The cross-entropy of the logit x and the probability z: max(x, 0) - x z + ln(1 + e⁻ˡˣˡ). The loss is exact even
    /// for logits whose sigmoid would be rounded to 0 or 1.
    Logistic,
    /// The Huber loss with this delta: ½ d² if the difference d is at most delta in absolute value, otherwise delta
    /// (|d| − ½ delta).
    Huber(f64),
}

/// Computes the mean loss over the pairs of two tensors with the same shape and dtype on the CPU.
pub(super) fn mean<T: Exp>(kind: PairLoss, x: &Tensor, z: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op2(&z.contiguous()?, Pairs::<T>(kind, PhantomData))
}

struct Pairs<T>(PairLoss, PhantomData<T>);

/// The number of sums that are computed in parallel. Each sum gets [`DEPTH`] pairs before the sums are combined.
const LANES: usize = 8;
const DEPTH: usize = 32;

impl<T: Exp> Pairs<T> {
    fn sum(&self, x: &[T], z: &[T]) -> f64 {
        let blocks = x.chunks(LANES * DEPTH).zip(z.chunks(LANES * DEPTH));
        match self.0 {
            PairLoss::Squared => blocks.map(|(x, z)| squared(x, z)).sum(),
            PairLoss::Logistic => blocks.map(|(x, z)| logistic(x, z)).sum(),
            PairLoss::Huber(delta) => blocks.map(|(x, z)| huber(x, z, delta)).sum(),
        }
    }

    fn prediction_gradient(&self, x: &[T], z: &[T], scale: T) -> Vec<T> {
        let (zero, one, pairs) = (T::of(0.), T::of(1.), x.iter().zip(z));
        match self.0 {
            PairLoss::Squared => pairs.map(|(x, z)| (*x - *z) * (scale + scale)).collect(),
            PairLoss::Logistic => {
                let mut gradient = decays(x);
                gradient.iter_mut().zip(pairs).for_each(|(e, (x, z))| {
                    let sigmoid = (if *x < zero { *e } else { one }) / (one + *e);
                    *e = (sigmoid - *z) * scale;
                });
                gradient
            }
            PairLoss::Huber(delta) => {
                let delta = T::of(delta);
                pairs.map(|(x, z)| clamped(*x - *z, delta) * scale).collect()
            }
        }
    }

    fn target_gradient(&self, x: &[T], z: &[T], scale: T) -> Vec<T> {
        match self.0 {
            PairLoss::Squared => x.iter().zip(z).map(|(x, z)| (*z - *x) * (scale + scale)).collect(),
            PairLoss::Logistic => x.iter().map(|x| (T::of(0.) - *x) * scale).collect(),
            PairLoss::Huber(delta) => {
                let delta = T::of(delta);
                x.iter().zip(z).map(|(x, z)| clamped(*z - *x, delta) * scale).collect()
            }
        }
    }
}

/// Returns the sum of the squared errors of a block.
fn squared<T: Exp>(x: &[T], z: &[T]) -> f64 {
    let mut sums = [0.; LANES];
    for (x, z) in x.chunks(LANES).zip(z.chunks(LANES)) {
        for (sum, (x, z)) in sums.iter_mut().zip(x.iter().zip(z)) {
            let distance = (*x - *z).to_f64();
            *sum += distance * distance;
        }
    }
    sums.iter().sum()
}

/// Returns the sum of the Huber losses of a block.
fn huber<T: Exp>(x: &[T], z: &[T], delta: f64) -> f64 {
    let mut sums = [0.; LANES];
    for (x, z) in x.chunks(LANES).zip(z.chunks(LANES)) {
        for (sum, (x, z)) in sums.iter_mut().zip(x.iter().zip(z)) {
            let distance = (*x - *z).to_f64().abs();
            // NaN stays NaN.
            *sum += if distance > delta { delta * (distance - delta / 2.) } else { distance * distance / 2. };
        }
    }
    sums.iter().sum()
}

/// Returns `x`, limited to the range from −`delta` to `delta`. NaN stays NaN.
fn clamped<T: Exp>(x: T, delta: T) -> T {
    if abs(x) > delta { distribute_optim::Float::copysign(delta, x) } else { x }
}

/// Returns the sum of the cross-entropies of a block. The factors 1 + exp(-|x|) are between 1 and 2. They are
/// multiplied, so a single logarithm per lane is enough; the product does not overflow within a block.
fn logistic<T: Exp>(x: &[T], z: &[T]) -> f64 {
    let zero = T::of(0.);
    let (mut sums, mut products) = ([0.; LANES], [1.; LANES]);
    let decays = decays(x);
    for ((x, z), e) in x.chunks(LANES).zip(z.chunks(LANES)).zip(decays.chunks(LANES)) {
        for ((sum, product), ((x, z), e)) in sums.iter_mut().zip(&mut products).zip(x.iter().zip(z).zip(e)) {
            *sum += ((if *x > zero { *x } else { zero }) - *x * *z).to_f64();
            *product *= 1. + e.to_f64();
        }
    }
    sums.iter().sum::<f64>() + products.iter().map(|product: &f64| product.ln()).sum::<f64>()
}

/// Returns exp(-|x|) for each number x. The loop contains nothing else, so the compiler can vectorize it.
fn decays<T: Exp>(x: &[T]) -> Vec<T> {
    let mut all: Vec<T> = x.iter().map(|x| T::of(0.) - abs(*x)).collect();
    all.iter_mut().for_each(|x| *x = x.exp_of_negative());
    all
}

fn abs<T: Exp>(x: T) -> T {
    distribute_optim::Float::abs(x)
}

impl<T: Exp> CustomOp2 for Pairs<T> {
    fn name(&self) -> &'static str {
        match self.0 {
            PairLoss::Squared => "mse",
            PairLoss::Logistic => "binary-cross-entropy",
            PairLoss::Huber(_) => "huber",
        }
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        z: &CpuStorage,
        z_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, z) = (operand::<T>(x, x_layout)?, operand::<T>(z, z_layout)?);
        let mean = self.sum(x, z) / x.len() as f64;
        Ok((T::to_cpu_storage_owned(vec![T::of(mean)]), Shape::from(())))
    }

    fn bwd(
        &self,
        x: &Tensor,
        z: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let scale = T::of(upstream.to_scalar::<T>()?.to_f64() / x.elem_count() as f64);
        let of_x = || gradient(x, z, |x, z| self.prediction_gradient(x, z, scale));
        let of_z = || gradient(x, z, |x, z| self.target_gradient(x, z, scale));
        Ok((x.track_op().then(of_x).transpose()?, z.track_op().then(of_z).transpose()?))
    }
}

/// Creates a gradient with the shape of both tensors. Its elements are the result of `of`.
fn gradient<T: Exp>(x: &Tensor, z: &Tensor, of: impl FnOnce(&[T], &[T]) -> Vec<T>) -> Result<Tensor> {
    let gradient = with_elements(x, |x| with_elements(z, |z| of(x, z)))??;
    Tensor::from_vec(gradient, x.shape(), x.device())
}
