//! [`LossScale`]: multiplies the loss, so that small gradients in f16 do not become 0.

use crate::{Inner, Optimizer};
use distribute_base::{Error, MixedPrecision, Result};
use distribute_optim::Rule;
use std::sync::atomic::{AtomicU64, Ordering};

/// The factor by which an optimizer multiplies losses before the backward pass. The gradients are divided by it
/// afterwards, in f32.
///
/// With powers of 2, results are bit-identical to those without a scale, unless a number over- or underflows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "tf.keras.mixed_precision.LossScaleOptimizer")]
#[doc(alias = "LossScaleOptimizer")]
#[doc(alias = "GradScaler")]
pub enum LossScale {
    /// A factor that never changes.
    Fixed(f64),
    /// A factor that adapts. If a loss or gradient of any replica is not finite, all replicas skip the step, and the
    /// factor is halved, but not below 1. After `growth_steps` consecutive finite steps, the factor is doubled, up to
    /// 2^112.
    Dynamic {
        /// The factor of the first step.
        initial: f64,
        /// The number of consecutive finite steps after which the factor doubles.
        growth_steps: u64,
    },
}

impl LossScale {
    /// Returns a factor that adapts. It starts at 32,768 and doubles after 2,000 finite steps.
    pub const fn dynamic() -> Self {
        LossScale::Dynamic { initial: 32_768., growth_steps: 2_000 }
    }

    fn initial(self) -> f64 {
        match self {
            LossScale::Fixed(scale) => scale,
            LossScale::Dynamic { initial, .. } => initial,
        }
    }
}

/// The smallest factor. If gradients are not finite even with this factor, the loss scale is not the cause.
const MIN: f64 = 1.;

/// The largest factor. Losses of up to 32,768 remain finite in f32.
const MAX: f64 = (1u128 << 112) as f64;

/// The setting of an optimizer's loss scale, and its current state, which is the same on all workers.
#[derive(Debug)]
pub(crate) struct LossScaling {
    setting: Option<LossScale>,
    /// The bits of the factor.
    factor: AtomicU64,
    /// The number of consecutive finite steps since the factor changed.
    finite_steps: AtomicU64,
}

impl LossScaling {
    /// Creates the scaling that is the default for a strategy's precision.
    pub(crate) fn new(precision: MixedPrecision) -> Self {
        Self::of((precision == MixedPrecision::F16).then(LossScale::dynamic))
    }

    fn of(setting: Option<LossScale>) -> Self {
        let factor = setting.map_or(1., LossScale::initial);
        Self { setting, factor: AtomicU64::new(factor.to_bits()), finite_steps: AtomicU64::new(0) }
    }

    pub(crate) fn setting(&self) -> Option<LossScale> {
        self.setting
    }

    /// Returns the factor of the next step; `None` if losses are not scaled.
    pub(crate) fn factor(&self) -> Option<f64> {
        self.setting.map(|_| f64::from_bits(self.factor.load(Ordering::Relaxed)))
    }

    pub(crate) fn is_dynamic(&self) -> bool {
        matches!(self.setting, Some(LossScale::Dynamic { .. }))
    }

    /// Adapts the factor after a step in which all numbers were finite.
    pub(crate) fn record_finite(&self) {
        let Some(LossScale::Dynamic { growth_steps, .. }) = self.setting else { return };
        let steps = 1 + self.finite_steps.fetch_add(1, Ordering::Relaxed);
        if steps >= growth_steps {
            self.finite_steps.store(0, Ordering::Relaxed);
            self.update_factor(|factor| (factor * 2.).min(MAX));
        }
    }

    /// Adapts the factor after a step in which a number was not finite. Returns the new factor; `None` if the factor
    /// does not adapt or cannot become smaller.
    pub(crate) fn record_not_finite(&self) -> Option<f64> {
        self.finite_steps.store(0, Ordering::Relaxed);
        let factor = self.factor().filter(|factor| self.is_dynamic() && *factor > MIN)?;
        Some(self.update_factor(|_| (factor / 2.).max(MIN)))
    }

    fn update_factor(&self, next: impl FnOnce(f64) -> f64) -> f64 {
        let factor = next(f64::from_bits(self.factor.load(Ordering::Relaxed)));
        self.factor.store(factor.to_bits(), Ordering::Relaxed);
        factor
    }

    /// Returns the state for a checkpoint: the factor and the number of finite steps; `None` if losses are not scaled.
    pub(crate) fn state(&self) -> Option<(f64, u64)> {
        Some((self.factor()?, self.finite_steps.load(Ordering::Relaxed)))
    }

    /// Restores a state, if the factor adapts and is within the limits.
    pub(crate) fn restore(&self, (factor, finite_steps): (f64, u64)) {
        if self.is_dynamic() && (MIN..=MAX).contains(&factor) {
            self.factor.store(factor.to_bits(), Ordering::Relaxed);
            self.finite_steps.store(finite_steps, Ordering::Relaxed);
        }
    }
}

impl<R: Rule> Optimizer<R> {
    /// Multiplies losses by a factor before the backward pass, and divides the gradients by it afterwards. This is
    /// needed for f16, whose gradients otherwise become 0 if they are below 3e-8. If the strategy's precision is
    /// [`MixedPrecision::F16`] when the optimizer is created, [`LossScale::dynamic`] is the default.
    ///
    /// Transforms get unscaled gradients, and the optimizer returns and reports unscaled losses.
    /// [`skipped_steps`](Optimizer::skipped_steps) counts the steps that a dynamic scale has skipped. A skipped step is
    /// reported as a warning only if a loss is not finite, or if the factor is already 1.
    ///
    /// The setting must be the same on all workers. The factor is part of checkpoints.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a factor is not from 1 to 2^112, or `growth_steps` is 0.
    ///
    /// ```
    /// # use distribute::{optimizer::LossScale, prelude::*};
    /// use candle_nn::Init;
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(1.)))?;
    /// let optimizer = Sgd::new(&model.variables, 1.)?.with_loss_scale(LossScale::Fixed(1024.))?;
    /// let losses = strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w.sum_all()? * 0.5)?, 1))?;
    /// assert_eq!(losses.values()[0].to_scalar::<f32>()?, 0.5);
    /// assert_eq!(model.variables.get("w")?.to_vec1::<f32>()?, [0.5]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn with_loss_scale(mut self, scale: LossScale) -> Result<Self> {
        let initial = scale.initial();
        if !(MIN..=MAX).contains(&initial) {
            let reason = format!("the factor is {initial}, but must be at least 1 and at most 2^112");
            return Err(Error::invalid("with_loss_scale", reason));
        }
        if matches!(scale, LossScale::Dynamic { growth_steps: 0, .. }) {
            let reason = "growth_steps is 0, but must be at least 1";
            return Err(Error::invalid("with_loss_scale", reason));
        }
        self.inner.loss_scaling = LossScaling::of(Some(scale));
        self.inner.require_comparison();
        Ok(self)
    }

    /// Returns the factor by which the next step multiplies losses; `None` if they are not scaled.
    pub fn loss_scale(&self) -> Option<f64> {
        self.inner.loss_scaling.factor()
    }
}

impl Inner {
    /// Returns whether the gradients of each replica are checked for numbers that are not finite.
    pub(crate) fn checks_gradients(&self) -> bool {
        self.not_finite.looks_at_gradients() || self.loss_scaling.is_dynamic()
    }

    /// Returns the factor that undoes the loss scale in the sum over all replicas. It is 1 if losses are not scaled, or
    /// if each replica has already undone the scale because transforms precede the reduction.
    pub(crate) fn unscale(&self) -> f64 {
        match self.loss_scaling.factor() {
            Some(factor) if self.before_reduce.is_empty() => 1. / factor,
            _ => 1.,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_factor_halves_and_grows_within_its_limits() {
        let scaling = LossScaling::of(Some(LossScale::Dynamic { initial: 4., growth_steps: 3 }));
        (0..2).for_each(|_| scaling.record_finite());
        assert_eq!(scaling.state(), Some((4., 2)));
        scaling.record_finite();
        assert_eq!(scaling.state(), Some((8., 0)));
        scaling.record_finite();
        assert_eq!(scaling.record_not_finite(), Some(4.));
        assert_eq!(scaling.state(), Some((4., 0)), "the count starts again");
        assert_eq!([(); 3].map(|()| scaling.record_not_finite()), [Some(2.), Some(1.), None]);
        (0..2).for_each(|_| scaling.record_finite());
        assert_eq!(scaling.record_not_finite(), None);
        assert_eq!(scaling.state(), Some((1., 0)), "the count starts again with the smallest factor");
        scaling.restore((MAX, 2));
        scaling.record_finite();
        assert_eq!(scaling.factor(), Some(MAX));
    }

    #[test]
    fn a_fixed_factor_does_not_adapt_and_is_not_restored() {
        let scaling = LossScaling::of(Some(LossScale::Fixed(8.)));
        scaling.record_finite();
        assert_eq!(scaling.record_not_finite(), None);
        scaling.restore((2., 1));
        assert_eq!(scaling.factor(), Some(8.));
        assert_eq!(LossScaling::new(MixedPrecision::Bf16).factor(), None);
        assert_eq!(LossScaling::new(MixedPrecision::F16).factor(), Some(32_768.));
    }
}
