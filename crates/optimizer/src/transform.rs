//! Transforms of gradients, before or after the reduction.

use crate::gradients::Gradient;
use distribute_base::internal::Number;
use distribute_base::{Error, Result};
use std::fmt;
use std::sync::Arc;

pub(crate) type GradientFn = dyn Fn(&str, Gradient) -> Result<Gradient> + Send + Sync;

/// A transform of gradients, before or after they are reduced.
///
/// It matters when a transform is applied. Clipping [before](crate::Optimizer::before_reduce) the reduction limits each
/// replica's own gradient, so the average depends on the number of replicas. Clipping
/// [after](crate::Optimizer::after_reduce) it limits the gradient of the global batch, so N replicas train like a
/// single device. Several transforms are applied in the order in which they were added.
///
/// After the reduction, all transforms except [`each`](Transform::each) run in the same pass as the reduction and the
/// update. Norms need an additional pass that only reads. For gradients by row, only the rows with a gradient are
/// changed.
///
/// ```
/// # use distribute::{optimizer::Transform, prelude::*};
/// # use candle_nn::linear;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
/// let optimizer = Adam::new(&model.variables, 1e-3)?
///     .after_reduce(Transform::weight_decay(1e-4))?
///     .after_reduce(Transform::clip_by_global_norm(1.))?;
/// # Ok::<(), distribute::Error>(())
/// ```
#[derive(Clone)]
pub struct Transform(TransformKind);

#[derive(Clone)]
pub(crate) enum TransformKind {
    ClipByValue { min: f64, max: f64 },
    ClipByNorm(f64),
    ClipByGlobalNorm(f64),
    WeightDecay(f64),
    Each(Arc<GradientFn>),
}

impl Transform {
    /// Creates a transform that clamps each element to the range from `min` to `max`.
    #[doc(alias = "tf.clip_by_value")]
    #[doc(alias = "clipvalue")]
    pub fn clip_by_value(min: f64, max: f64) -> Self {
        Self(TransformKind::ClipByValue { min, max })
    }

    /// Creates a transform that scales the gradient of each variable so that its L2 norm is at most `max`.
    #[doc(alias = "tf.clip_by_norm")]
    #[doc(alias = "clipnorm")]
    pub fn clip_by_norm(max: f64) -> Self {
        Self(TransformKind::ClipByNorm(max))
    }

    /// Creates a transform that scales all gradients by a common factor, so that the L2 norm over all variables is
    /// at most `max`.
    #[doc(alias = "tf.clip_by_global_norm")]
    #[doc(alias = "global_clipnorm")]
    pub fn clip_by_global_norm(max: f64) -> Self {
        Self(TransformKind::ClipByGlobalNorm(max))
    }

    /// Creates a transform that adds `rate` times the variable to its gradient. This corresponds to an additional term
    /// `rate / 2 · ‖w‖²` in the loss.
    ///
    /// Rules that scale gradients also scale this term. [`AdamW`](crate::AdamW) instead applies its decay separately.
    pub fn weight_decay(rate: f64) -> Self {
        Self(TransformKind::WeightDecay(rate))
    }

    /// Creates a transform that calls `change` with the name and the gradient of each variable that has one, and
    /// replaces the gradient with the result.
    ///
    /// Before the reduction, `change` is called on all replicas at the same time. After the reduction, it is called
    /// once, on replica 0 and in cross-replica context, in which collectives return an error. The other replicas wait,
    /// but no longer than the strategy's timeout. `change` may call
    /// [`finished_steps`](crate::Optimizer::finished_steps) and [`learning_rate`](crate::Optimizer::learning_rate), but
    /// not [`slot`](crate::Optimizer::slot). Training is only reproducible if `change` always returns the same output
    /// for the same input.
    pub fn each(change: impl Fn(&str, Gradient) -> Result<Gradient> + Send + Sync + 'static) -> Self {
        Self(TransformKind::Each(Arc::new(change)))
    }

    pub(crate) fn validate(&self, operation: &'static str) -> Result<()> {
        let refuse = |reason: String| Err(Error::invalid(operation, reason));
        match self.0 {
            TransformKind::ClipByValue { min, max } if min.is_nan() || max.is_nan() || min > max => {
                refuse(format!("values cannot be clipped to {min}..={max}; min must not exceed max"))
            }
            TransformKind::ClipByNorm(max) | TransformKind::ClipByGlobalNorm(max)
                if max.is_nan() || max <= 0. =>
            {
                refuse(format!("the norm to clip to must be positive, not {max}"))
            }
            TransformKind::WeightDecay(rate) if !(rate.is_finite() && rate >= 0.) => {
                refuse(format!("the rate of weight decay must be finite and not negative, not {rate}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn kind(&self) -> &TransformKind {
        &self.0
    }

    /// Returns `true` if the transform depends on norms of gradients.
    pub(crate) fn takes_norms(&self) -> bool {
        matches!(self.0, TransformKind::ClipByNorm(_) | TransformKind::ClipByGlobalNorm(_))
    }

    /// Returns `true` if the transform depends on the gradients of all variables.
    pub(crate) fn needs_all_gradients(&self) -> bool {
        matches!(self.0, TransformKind::ClipByGlobalNorm(_))
    }

    /// Returns `true` if the transform reads the values of variables.
    pub(crate) fn reads_values(&self) -> bool {
        matches!(self.0, TransformKind::WeightDecay(_))
    }

    /// Returns the closure of [`Transform::each`]; `None` for other transforms. Only a closure gets complete gradients
    /// as its argument. All other transforms are applied element by element, once the norms that they need are known.
    pub(crate) fn closure(&self) -> Option<&GradientFn> {
        match &self.0 {
            TransformKind::Each(change) => Some(&**change),
            _ => None,
        }
    }
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            TransformKind::ClipByValue { min, max } => write!(f, "clip_by_value({min}, {max})"),
            TransformKind::ClipByNorm(max) => write!(f, "clip_by_norm({max})"),
            TransformKind::ClipByGlobalNorm(max) => write!(f, "clip_by_global_norm({max})"),
            TransformKind::WeightDecay(rate) => write!(f, "weight_decay({rate})"),
            TransformKind::Each(_) => f.write_str("each(..)"),
        }
    }
}

/// Transforms without closures whose norms have been computed, so that they can be applied element by element.
#[derive(Default)]
pub(crate) struct ResolvedTransforms(Vec<ElementChange>);

enum ElementChange {
    Clamp(f64, f64),
    Decay(f64),
    /// The scale factor of each variable.
    Scale(Vec<f64>),
}

impl ResolvedTransforms {
    /// Computes the norms that `transforms` need. `squares` receives the transforms resolved so far, and returns pairs:
    /// the index of a variable, and the sum of squares of one of its ranges after those transforms.
    pub(crate) fn new(
        transforms: &[Transform],
        variables: usize,
        mut squares: impl FnMut(&ResolvedTransforms) -> Result<Vec<(usize, f64)>>,
    ) -> Result<Self> {
        let mut resolved = ResolvedTransforms::default();
        // A norm that is NaN clips nothing, so that the NaN is seen.
        let factor = |norm: f64, max: f64| if norm > max { max / norm } else { 1. };
        for transform in transforms {
            let change = match transform.0 {
                TransformKind::ClipByValue { min, max } => ElementChange::Clamp(min, max),
                TransformKind::WeightDecay(rate) => ElementChange::Decay(rate),
                TransformKind::ClipByGlobalNorm(max) => {
                    let norm = squares(&resolved)?.into_iter().map(|(_, square)| square).sum::<f64>().sqrt();
                    ElementChange::Scale(vec![factor(norm, max); variables])
                }
                TransformKind::ClipByNorm(max) => {
                    let mut sums = vec![0.; variables];
                    squares(&resolved)?.into_iter().for_each(|(variable, square)| sums[variable] += square);
                    ElementChange::Scale(sums.into_iter().map(|sum| factor(sum.sqrt(), max)).collect())
                }
                // Between the parts that are resolved.
                TransformKind::Each(_) => continue,
            };
            resolved.0.push(change);
        }
        Ok(resolved)
    }

    /// Returns `true` if the transforms leave a variable's gradient unchanged.
    pub(crate) fn is_identity(&self, variable: usize) -> bool {
        self.0.iter().all(|change| matches!(change, ElementChange::Scale(factors) if factors[variable] == 1.))
    }

    /// Returns `true` if the transforms read the values of variables.
    pub(crate) fn reads_values(&self) -> bool {
        self.0.iter().any(|change| matches!(change, ElementChange::Decay(_)))
    }

    /// Transforms a range of a variable's gradient in place. If values of variables are read, `values` contains the
    /// variable's values in that range.
    pub(crate) fn apply<F: Number>(&self, variable: usize, gradient: &mut [F], values: &[F]) {
        for change in &self.0 {
            match change {
                ElementChange::Clamp(min, max) => {
                    let (min, max) = (F::of(*min), F::of(*max));
                    // This form of the comparison keeps NaN.
                    let clamp = |x: F| {
                        if x < min {
                            min
                        } else if x > max {
                            max
                        } else {
                            x
                        }
                    };
                    gradient.iter_mut().for_each(|x| *x = clamp(*x));
                }
                ElementChange::Decay(rate) => {
                    let rate = F::of(*rate);
                    gradient.iter_mut().zip(values).for_each(|(x, value)| *x += rate * *value);
                }
                ElementChange::Scale(factors) if factors[variable] == 1. => {}
                ElementChange::Scale(factors) => {
                    let factor = F::of(factors[variable]);
                    gradient.iter_mut().for_each(|x| *x *= factor);
                }
            }
        }
    }
}
