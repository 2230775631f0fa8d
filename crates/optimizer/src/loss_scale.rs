//! The loss scale of an optimizer.

use crate::{Inner, LossScale, Optimizer};
use distribute_base::Result;
use distribute_decisions::internal::LossScaling;
use distribute_optim::Rule;

impl<R: Rule> Optimizer<R> {
    /// Multiplies losses by a factor before the backward pass, and divides the gradients by it afterwards. This is
    /// needed for f16, whose gradients otherwise become 0 if they are below 3e-8. If the strategy's precision is
    /// [`MixedPrecision::F16`](distribute_base::MixedPrecision::F16) when the optimizer is created,
    /// [`LossScale::dynamic`] is the default.
    ///
    /// Transforms get unscaled gradients, and the optimizer returns and reports unscaled losses.
    /// [`skipped_steps`](Optimizer::skipped_steps) counts the steps that a dynamic scale has skipped. A skipped step is
    /// reported as a warning only if a loss is not finite, or if the factor is already 1.
    ///
    /// The setting must be the same on all workers. The factor is part of checkpoints.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): a factor is not from 1 to 2^112, or
    ///   `growth_steps` is 0.
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
        self.inner.loss_scaling = LossScaling::checked("with_loss_scale", scale)?;
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
