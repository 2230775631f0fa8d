//! [`LossScale`]: the factor of the loss, which keeps small gradients in f16 from becoming 0. It adapts to the steps
//! that were finite.

use distribute_base::{Error, MixedPrecision, Result};
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
pub struct LossScaling {
    setting: Option<LossScale>,
    /// The bits of the factor.
    factor: AtomicU64,
    /// The number of consecutive finite steps since the factor changed.
    finite_steps: AtomicU64,
}

impl LossScaling {
    /// Creates the scaling that is the default for a strategy's precision.
    pub fn new(precision: MixedPrecision) -> Self {
        Self::of((precision == MixedPrecision::F16).then(LossScale::dynamic))
    }

    /// Creates the scaling of a setting of `operation`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a factor is not from 1 to 2^112, or `growth_steps` is 0.
    pub fn checked(operation: &'static str, scale: LossScale) -> Result<Self> {
        let initial = scale.initial();
        if !(MIN..=MAX).contains(&initial) {
            let reason = format!("the factor is {initial}, but must be at least 1 and at most 2^112");
            return Err(Error::invalid(operation, reason));
        }
        if matches!(scale, LossScale::Dynamic { growth_steps: 0, .. }) {
            let reason = "growth_steps is 0, but must be at least 1";
            return Err(Error::invalid(operation, reason));
        }
        Ok(Self::of(Some(scale)))
    }

    fn of(setting: Option<LossScale>) -> Self {
        let factor = setting.map_or(1., LossScale::initial);
        Self { setting, factor: AtomicU64::new(factor.to_bits()), finite_steps: AtomicU64::new(0) }
    }

    /// Returns the setting; `None` if losses are not scaled.
    pub fn setting(&self) -> Option<LossScale> {
        self.setting
    }

    /// Returns the factor of the next step; `None` if losses are not scaled.
    pub fn factor(&self) -> Option<f64> {
        self.setting.map(|_| f64::from_bits(self.factor.load(Ordering::Relaxed)))
    }

    /// Returns whether the factor adapts.
    pub fn is_dynamic(&self) -> bool {
        matches!(self.setting, Some(LossScale::Dynamic { .. }))
    }

    /// Adapts the factor after a step in which all numbers were finite.
    pub fn record_finite(&self) {
        let Some(LossScale::Dynamic { growth_steps, .. }) = self.setting else { return };
        let steps = 1 + self.finite_steps.fetch_add(1, Ordering::Relaxed);
        if steps >= growth_steps {
            self.finite_steps.store(0, Ordering::Relaxed);
            self.update_factor(|factor| (factor * 2.).min(MAX));
        }
    }

    /// Adapts the factor after a step in which a number was not finite. Returns the new factor; `None` if the factor
    /// does not adapt or cannot become smaller.
    pub fn record_not_finite(&self) -> Option<f64> {
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
    pub fn state(&self) -> Option<(f64, u64)> {
        Some((self.factor()?, self.finite_steps.load(Ordering::Relaxed)))
    }

    /// Restores a state, if the factor adapts and is within the limits.
    pub fn restore(&self, (factor, finite_steps): (f64, u64)) {
        if self.is_dynamic() && (MIN..=MAX).contains(&factor) {
            self.factor.store(factor.to_bits(), Ordering::Relaxed);
            self.finite_steps.store(finite_steps, Ordering::Relaxed);
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
