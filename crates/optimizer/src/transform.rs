//! Transforms of gradients, before or after the reduction.

use crate::gradients::Gradient;
use distribute_base::internal::Number;
use distribute_base::{Error, Result};
use std::fmt;
use std::sync::Arc;

pub(crate) type Each = dyn Fn(&str, Gradient) -> Result<Gradient> + Send + Sync;

/// A change of gradients, before or after they are reduced.
///
/// *When* makes a difference: clipped [before](crate::Optimizer::before_reduce), each replica's own gradient is bounded
/// and their average changes with the number of replicas; clipped [after](crate::Optimizer::after_reduce), the gradient
/// of the global batch is, so that N replicas train like one device. Several are applied in the order they were given.
///
/// After the reduction, all but [`each`](Transform::each) are done in the pass that reduces and updates; norms need
/// one more pass that reads. Of a gradient by row only the rows that are there are changed.
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
pub struct Transform(Kind);

/// The kinds of transforms.
#[derive(Clone)]
pub(crate) enum Kind {
    ClipByValue { min: f64, max: f64 },
    ClipByNorm(f64),
    ClipByGlobalNorm(f64),
    WeightDecay(f64),
    Each(Arc<Each>),
}

impl Transform {
    /// Each element is raised to `min` or lowered to `max` where it is outside.
    #[doc(alias = "tf.clip_by_value")]
    #[doc(alias = "clipvalue")]
    pub fn clip_by_value(min: f64, max: f64) -> Self {
        Self(Kind::ClipByValue { min, max })
    }

    /// The gradient of each variable is scaled so that its norm is at most `max`.
    #[doc(alias = "tf.clip_by_norm")]
    #[doc(alias = "clipnorm")]
    pub fn clip_by_norm(max: f64) -> Self {
        Self(Kind::ClipByNorm(max))
    }

    /// All gradients are scaled by one factor, so that their norm over all variables together is at most `max`.
    #[doc(alias = "tf.clip_by_global_norm")]
    #[doc(alias = "global_clipnorm")]
    pub fn clip_by_global_norm(max: f64) -> Self {
        Self(Kind::ClipByGlobalNorm(max))
    }

    /// `rate` times the variable is added to its gradient: the gradient of `rate / 2 · ‖w‖²` in the loss.
    ///
    /// Rules that scale gradients scale this with them; [`AdamW`](crate::AdamW) decays apart from them.
    pub fn weight_decay(rate: f64) -> Self {
        Self(Kind::WeightDecay(rate))
    }

    /// `change` is called with the name and the gradient of each variable that has one; what it gives is taken instead.
    ///
    /// Before the reduction it is called on each replica, at once. After it, once for all replicas, on replica 0 and in
    /// cross-replica context, where collectives are refused; the others wait for it as long as the strategy's timeout.
    /// While it runs, [`finished_steps`](crate::Optimizer::finished_steps) and
    /// [`learning_rate`](crate::Optimizer::learning_rate) can be asked, but not [`slot`](crate::Optimizer::slot). The
    /// same input has to give the same output, for results that can be repeated.
    pub fn each(change: impl Fn(&str, Gradient) -> Result<Gradient> + Send + Sync + 'static) -> Self {
        Self(Kind::Each(Arc::new(change)))
    }

    pub(crate) fn validate(&self, operation: &'static str) -> Result<()> {
        let refuse = |reason: String| Err(Error::invalid(operation, reason));
        match self.0 {
            Kind::ClipByValue { min, max } if min.is_nan() || max.is_nan() || min > max => {
                refuse(format!("values cannot be clipped to {min}..={max}: give min ≤ max"))
            }
            Kind::ClipByNorm(max) | Kind::ClipByGlobalNorm(max) if max.is_nan() || max <= 0. => {
                refuse(format!("the norm to clip to must be positive, not {max}"))
            }
            Kind::WeightDecay(rate) if !(rate.is_finite() && rate >= 0.) => {
                refuse(format!("the rate of weight decay must be finite and not negative, not {rate}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Whether it depends on the norms of gradients.
    pub(crate) fn takes_norms(&self) -> bool {
        matches!(self.0, Kind::ClipByNorm(_) | Kind::ClipByGlobalNorm(_))
    }

    /// Whether it depends on the gradients of all variables of all workers.
    pub(crate) fn needs_all_gradients(&self) -> bool {
        matches!(self.0, Kind::ClipByGlobalNorm(_))
    }

    /// Whether it reads the values of variables.
    pub(crate) fn reads_values(&self) -> bool {
        matches!(self.0, Kind::WeightDecay(_))
    }

    /// The closure, where this is one: it needs whole gradients, the others see element after element.
    pub(crate) fn closure(&self) -> Option<&Each> {
        match &self.0 {
            Kind::Each(change) => Some(&**change),
            _ => None,
        }
    }
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::ClipByValue { min, max } => write!(f, "clip_by_value({min}, {max})"),
            Kind::ClipByNorm(max) => write!(f, "clip_by_norm({max})"),
            Kind::ClipByGlobalNorm(max) => write!(f, "clip_by_global_norm({max})"),
            Kind::WeightDecay(rate) => write!(f, "weight_decay({rate})"),
            Kind::Each(_) => f.write_str("each(..)"),
        }
    }
}

/// Transforms without closures, made ready to be applied to one element after another.
#[derive(Default)]
pub(crate) struct ResolvedTransforms(Vec<Change>);

enum Change {
    Clamp(f64, f64),
    Decay(f64),
    /// The factor of each variable.
    Scale(Vec<f64>),
}

impl ResolvedTransforms {
    /// Settles norms by `squares`: for each range of a variable in turn, its number and the sum of squares of its
    /// gradient after the transforms that are already settled.
    pub(crate) fn new(
        transforms: &[Transform],
        variables: usize,
        mut squares: impl FnMut(&ResolvedTransforms) -> Result<Vec<(usize, f64)>>,
    ) -> Result<Self> {
        let mut resolved = ResolvedTransforms::default();
        // A norm that is NaN clips nothing: the NaN shall be seen.
        let factor = |norm: f64, max: f64| if norm > max { max / norm } else { 1. };
        for transform in transforms {
            let change = match transform.0 {
                Kind::ClipByValue { min, max } => Change::Clamp(min, max),
                Kind::WeightDecay(rate) => Change::Decay(rate),
                Kind::ClipByGlobalNorm(max) => {
                    let norm = squares(&resolved)?.into_iter().map(|(_, square)| square).sum::<f64>().sqrt();
                    Change::Scale(vec![factor(norm, max); variables])
                }
                Kind::ClipByNorm(max) => {
                    let mut sums = vec![0.; variables];
                    squares(&resolved)?.into_iter().for_each(|(variable, square)| sums[variable] += square);
                    Change::Scale(sums.into_iter().map(|sum| factor(sum.sqrt(), max)).collect())
                }
                // Between the parts that are settled.
                Kind::Each(_) => continue,
            };
            resolved.0.push(change);
        }
        Ok(resolved)
    }

    /// Whether a variable's gradient stays as it is.
    pub(crate) fn leaves(&self, variable: usize) -> bool {
        self.0.iter().all(|change| matches!(change, Change::Scale(factors) if factors[variable] == 1.))
    }

    /// Whether the values of variables are needed.
    pub(crate) fn reads_values(&self) -> bool {
        self.0.iter().any(|change| matches!(change, Change::Decay(_)))
    }

    /// Changes a range of a variable's gradient. `values` are those of the variable, if they are needed.
    pub(crate) fn apply<F: Number>(&self, variable: usize, gradient: &mut [F], values: &[F]) {
        for change in &self.0 {
            match change {
                Change::Clamp(min, max) => {
                    let (min, max) = (F::of(*min), F::of(*max));
                    // Asked this way, NaN stays NaN.
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
                Change::Decay(rate) => {
                    let rate = F::of(*rate);
                    gradient.iter_mut().zip(values).for_each(|(x, value)| *x += rate * *value);
                }
                Change::Scale(factors) if factors[variable] == 1. => {}
                Change::Scale(factors) => {
                    let factor = F::of(factors[variable]);
                    gradient.iter_mut().for_each(|x| *x *= factor);
                }
            }
        }
    }
}
