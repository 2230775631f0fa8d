//! Rules as data: the hyper-parameters of each rule, and [`RuleSpec`] for any rule.
//!
//! A `RuleSpec` is sent to servers and stored in checkpoints, so changing a field here changes these formats. The
//! formulas are in `rules/`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::cell::Cell;

/// A rule of this crate with its hyper-parameters, as data. It is sent to servers, which apply the rule, and stored
/// in checkpoints with the slots.
///
/// ```
/// use distribute_optim::{Momentum, Rule, RuleSpec};
///
/// let rule: Box<dyn Rule> = Box::new(Momentum::nesterov(0.9));
/// let spec = rule.spec().expect("a rule of this crate");
/// assert_eq!(spec, RuleSpec::Momentum(Momentum { momentum: 0.9, nesterov: true }));
/// assert_eq!(spec.rule().name(), "momentum");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RuleSpec {
    /// The rule [`Sgd`].
    Sgd(Sgd),
    /// The rule [`Momentum`].
    Momentum(Momentum),
    /// The rule [`Adam`].
    Adam(Adam),
    /// The rule [`AdamW`].
    AdamW(AdamW),
    /// The rule [`Adagrad`].
    Adagrad(Adagrad),
    /// The rule [`RmsProp`].
    RmsProp(RmsProp),
    /// The rule [`Ftrl`].
    Ftrl(Ftrl),
    /// The rule [`NAdam`].
    NAdam(NAdam),
    /// The rule [`Lion`].
    Lion(Lion),
    /// The rule [`RowAdagrad`].
    RowAdagrad(RowAdagrad),
    /// The rule [`Lamb`].
    Lamb(Lamb),
    /// The rule [`Adafactor`].
    Adafactor(Adafactor),
    /// The rule [`Averaged`](crate::Averaged).
    Averaged {
        /// The fraction of the average that is kept in each step.
        ema_momentum: f64,
        /// The rule that updates the variable.
        #[serde(deserialize_with = "not_averaged")]
        of: Box<RuleSpec>,
    },
}

thread_local! {
    /// Whether this thread is decoding the rule of an average.
    static IN_AVERAGE: Cell<bool> = const { Cell::new(false) };
}

/// Decodes the rule of an average. Returns an error if the rule is an average itself: otherwise, untrusted bytes could
/// nest rules to any depth.
fn not_averaged<'de, D: Deserializer<'de>>(from: D) -> Result<Box<RuleSpec>, D::Error> {
    if IN_AVERAGE.replace(true) {
        return Err(D::Error::custom("the rule of an average is itself an average"));
    }
    let rule = Box::deserialize(from);
    IN_AVERAGE.set(false);
    rule
}

/// The rule of gradient descent: var ← var − lr · g.
///
/// TensorFlow's default learning rate is 0.01. For momentum, see [`Momentum`](crate::Momentum).
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "SGD")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sgd;

/// The rule of gradient descent with momentum.
///
/// - accum ← momentum · accum + g
/// - var ← var − lr · accum, or with `nesterov` var ← var − lr · (g + momentum · accum)
///
/// The learning rate is not part of `accum`: if it changes, the new rate applies to all accumulated gradients, while
/// in Keras the old rate applies to them. With a constant rate there is no difference.
///
/// In an update by row, rows without a gradient do not change, and their `accum` does not decay.
///
/// ```
/// use distribute_optim::{Momentum, Rule};
/// assert_eq!(Momentum::nesterov(0.9).slots()[0].name, "accum");
/// ```
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "tf.compat.v1.train.MomentumOptimizer")]
#[doc(alias = "MomentumOptimizer")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Momentum {
    /// The fraction of `accum` that is kept in each step, in [0, 1). 0.9 by default; TensorFlow's default is 0.
    pub momentum: f64,
    /// Whether to use Nesterov's formula. `false` by default.
    pub nesterov: bool,
}

impl Momentum {
    /// Creates the rule with plain momentum.
    pub fn new(momentum: f64) -> Self {
        Momentum { momentum, nesterov: false }
    }

    /// Creates the rule with Nesterov momentum.
    pub fn nesterov(momentum: f64) -> Self {
        Momentum { momentum, nesterov: true }
    }
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum::new(0.9)
    }
}

/// The Adam rule. Each step is a running average of the gradient, divided by the root of a running average of its
/// square.
///
/// - m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
/// - var ← var − lrₜ · m / (√v + ε) with lrₜ = lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ)
///
/// ε is added before the bias of v is corrected, as in TensorFlow. In PyTorch, candle_nn and
/// [`AdamW`](crate::AdamW), it is added after the correction. TensorFlow's default learning rate is 0.001.
///
/// In an update by row, rows without a gradient are treated as if their gradient were 0: m and v decay, and all rows
/// change in every step. If `lazy` is `true`, such rows do not change. This is much faster for large tables, but the
/// results are different.
///
/// ```
/// use distribute_optim::{Adam, Rule};
/// assert!(Adam::default().moves_absent_rows());
/// assert_eq!(Adam::lazy().name(), "adam_lazy");
/// ```
#[doc(alias = "tf.keras.optimizers.Adam")]
#[doc(alias = "LazyAdam")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    /// The fraction of m that is kept in each step, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The fraction of v that is kept in each step, in [0, 1). 0.999 by default.
    pub beta2: f64,
    /// The term ε, greater than 0; 1e-7 by default.
    pub epsilon: f64,
    /// Whether an update by row leaves rows without a gradient unchanged. `false` by default.
    pub lazy: bool,
}

impl Adam {
    /// Creates the lazy variant with the default hyper-parameters.
    pub fn lazy() -> Self {
        Adam { lazy: true, ..Adam::default() }
    }
}

impl Default for Adam {
    fn default() -> Self {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-7, lazy: false }
    }
}

/// The AdamW rule: Adam with weight decay that does not affect the averages. On the CPU, results are bit-identical
/// to those of `candle_nn::AdamW`.
///
/// - m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
/// - var ← var · (1 − lr · λ) − lr · m̂ / (√v̂ + ε) with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)
///
/// ε is added after the bias of v is corrected, unlike in [`Adam`](crate::Adam). The defaults are those of candle_nn
/// and PyTorch, whose default learning rate is 0.001. In Keras, ε is 1e-7 and λ is 0.004.
///
/// In an update by row, rows without a gradient are treated as if their gradient were 0, so all rows decay and change.
/// If `lazy` is `true`, such rows do not change.
#[doc(alias = "tf.keras.optimizers.AdamW")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// The fraction of m that is kept in each step, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The fraction of v that is kept in each step, in [0, 1). 0.999 by default.
    pub beta2: f64,
    /// The term ε, greater than 0; 1e-8 by default.
    pub epsilon: f64,
    /// The weight decay λ, at least 0; 0.01 by default.
    pub weight_decay: f64,
    /// Whether an update by row leaves rows without a gradient unchanged. `false` by default.
    pub lazy: bool,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01, lazy: false }
    }
}

/// The NAdam rule: Adam with Nesterov momentum, as Keras defines it.
///
/// With μₜ = β₁ (1 − ½ · 0.96ᵗ) and the product Πₜ of μ₁ to μₜ:
/// - m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
/// - var ← var − lr · (μₜ₊₁ m / (1 − Πₜ₊₁) + (1 − μₜ) g / (1 − Πₜ)) / (√(v / (1 − β₂ᵗ)) + ε)
///
/// TensorFlow's default learning rate is 0.001. PyTorch's momentum increases more slowly: it has 0.96 to the power of
/// 0.004 t.
///
/// In an update by row, rows without a gradient are treated as if their gradient were 0. If `lazy` is `true`, such rows
/// do not change.
#[doc(alias = "tf.keras.optimizers.Nadam")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NAdam {
    /// The fraction of m that is kept in each step, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The fraction of v that is kept in each step, in [0, 1). 0.999 by default.
    pub beta2: f64,
    /// The term ε, greater than 0; 1e-7 by default.
    pub epsilon: f64,
    /// Whether an update by row leaves rows without a gradient unchanged. `false` by default.
    pub lazy: bool,
}

impl Default for NAdam {
    fn default() -> Self {
        NAdam { beta1: 0.9, beta2: 0.999, epsilon: 1e-7, lazy: false }
    }
}

/// The Lion rule, whose steps have the same size for all weights.
///
/// - var ← var · (1 − lr · λ) − lr · sign(β₁ m + (1 − β₁) g)
/// - m ← β₂ m + (1 − β₂) g
///
/// It keeps half as many slots as [`Adam`](crate::Adam). Its steps are larger than Adam's at the same rate: use a
/// learning rate that is 3 to 10 times smaller, and a weight decay that is larger by the same factor. Keras' default
/// learning rate is 0.001, and it has no weight decay by default.
///
/// In an update by row, rows without a gradient are treated as if their gradient were 0, so all rows change. If `lazy`
/// is `true`, such rows do not change.
#[doc(alias = "tf.keras.optimizers.Lion")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lion {
    /// The fraction of m in the direction of a step, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The fraction of m that is kept in each step, in [0, 1). 0.99 by default.
    pub beta2: f64,
    /// The weight decay λ, at least 0; 0 by default.
    pub weight_decay: f64,
    /// Whether an update by row leaves rows without a gradient unchanged. `false` by default.
    pub lazy: bool,
}

impl Default for Lion {
    fn default() -> Self {
        Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.0, lazy: false }
    }
}

/// The LAMB rule, for large batches: steps of Adam, scaled for each variable.
///
/// - m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
/// - r = m̂ / (√v̂ + ε) + λ · var with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)
/// - var ← var − lr · ‖var‖ / ‖r‖ · r
///
/// The trust ratio ‖var‖ / ‖r‖ is 1 if one of the norms is 0. The norms are those of the complete variable, so
/// parameter servers and shared tables, which have only a part, do not support the rule. The weight decay is part of r,
/// as in the paper of You et al. (2019). In Keras it is subtracted separately. Keras' default learning rate is 0.001.
///
/// Biases and the weights of norms usually have neither decay nor a trust ratio. Give them a rule with `adapt: false`.
///
/// A gradient by row is treated like a dense one, with 0 for the other rows: all rows change in every step.
///
/// ```
/// use distribute_optim::{Lamb, RuleExt, Step};
///
/// // The first step is the sign of the gradient, with the norm of the variable times the rate.
/// let (mut var, mut m, mut v) = ([3.0f64, 4.0], [0.0; 2], [0.0; 2]);
/// Lamb::default().update_shaped(Step::after(0, 0.1), &[2], &mut var, &[0.5, -0.5], &mut [&mut m, &mut v])?;
/// let step = 0.1 * 5.0 / 2f64.sqrt();
/// assert!((var[0] - (3.0 - step)).abs() < 1e-6 && (var[1] - (4.0 + step)).abs() < 1e-6);
/// # Ok::<(), distribute_optim::UpdateError>(())
/// ```
#[doc(alias = "tf.keras.optimizers.Lamb")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lamb {
    /// The fraction of m that is kept in each step, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The fraction of v that is kept in each step, in [0, 1). 0.999 by default.
    pub beta2: f64,
    /// The term ε, greater than 0; 1e-7 by default.
    pub epsilon: f64,
    /// The weight decay λ, at least 0; 0 by default.
    pub weight_decay: f64,
    /// Whether steps are multiplied by the trust ratio. `true` by default.
    pub adapt: bool,
}

impl Default for Lamb {
    fn default() -> Self {
        Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-7, weight_decay: 0.0, adapt: true }
    }
}

/// The Adagrad rule: accum ← accum + g², var ← var − lr · g / (√accum + ε).
///
/// TensorFlow's default learning rate is 0.001. An update by row does not change rows without a gradient. With a
/// gradient of 0 they would not change either.
#[doc(alias = "tf.keras.optimizers.Adagrad")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    /// The initial value of accum, at least 0; 0.1 by default.
    pub initial_accumulator_value: f64,
    /// The term ε, at least 0, and greater than 0 if accum is initially 0; 1e-7 by default.
    pub epsilon: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad { initial_accumulator_value: 0.1, epsilon: 1e-7 }
    }
}

/// The Adafactor rule, whose state is small: a moment for each row and one for each column of a matrix.
///
/// With s = g² + ε₁ and β = 1 − t^`beta_2_decay`, for variables of two or more dimensions:
/// - r ← β r + (1 − β) · mean of s over columns, c ← β c + (1 − β) · mean of s over rows
/// - v = r · c / mean(r)
///
/// Rows and columns are the last two dimensions; mean(r) is that of each matrix. Variables of fewer dimensions keep
/// v ← β v + (1 − β) s. Then, with RMS as the root of the mean of squares:
/// - u = g / √v, var ← var − ρ · max(ε₂, RMS(var)) · u / max(1, RMS(u) / `clip_threshold`)
///
/// With `relative_step`, ρ = min(lr, 1 / √t). Otherwise ρ is the learning rate. Keras takes the minimum in both cases.
/// Keras' default learning rate is 0.001; Shazeer and Stern (2018) use 0.01.
///
/// The moments and means are those of the complete variable, so parameter servers and shared tables, which have only a
/// part, do not support the rule. A gradient by row is treated like a dense one, with 0 for the other rows: all rows
/// change in every step.
///
/// Slots without elements have the shape `[0]`: `v` of matrices, `r` and `c` of vectors.
#[doc(alias = "tf.keras.optimizers.Adafactor")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adafactor {
    /// The exponent of t in β, less than 0; −0.8 by default.
    pub beta_2_decay: f64,
    /// The term ε₁, greater than 0; 1e-30 by default.
    pub epsilon_1: f64,
    /// The smallest factor of steps ε₂, at least 0; 0.001 by default. With 0, a variable that is 0 does not change.
    pub epsilon_2: f64,
    /// The largest RMS of u, greater than 0; 1 by default.
    pub clip_threshold: f64,
    /// Whether the rate is at most 1 / √t. `true` by default.
    pub relative_step: bool,
}

impl Default for Adafactor {
    fn default() -> Self {
        Adafactor {
            beta_2_decay: -0.8,
            epsilon_1: 1e-30,
            epsilon_2: 1e-3,
            clip_threshold: 1.0,
            relative_step: true,
        }
    }
}

/// The Adagrad rule with one accumulator for each row, for tables of embeddings.
///
/// - accum ← accum + (g₁² + … + gₙ²) / n, for the n elements of the row
/// - var ← var − lr · g / (√accum + ε)
///
/// This is the row-wise Adagrad of TorchRec, `EXACT_ROWWISE_ADAGRAD` of FBGEMM. A table of n columns has one nth of the
/// state of [`Adagrad`]. Rows are along the first dimension: each element of a vector is a row, and so is a scalar.
///
/// An update by row does not change rows without a gradient. With a gradient of 0 they would not change either.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowAdagrad {
    /// The initial value of accum, at least 0; 0 by default.
    pub initial_accumulator_value: f64,
    /// The term ε, at least 0, and greater than 0 if accum is initially 0; 1e-8 by default.
    pub epsilon: f64,
}

impl Default for RowAdagrad {
    fn default() -> Self {
        RowAdagrad { initial_accumulator_value: 0.0, epsilon: 1e-8 }
    }
}

/// The RMSprop rule, with momentum.
///
/// - ms ← ρ ms + (1 − ρ) g²
/// - mom ← momentum · mom + lr · g / √(ms + ε)
/// - var ← var − mom
///
/// ε is inside the root, and the learning rate is part of `mom`. TensorFlow's default learning rate is 0.001.
/// TensorFlow's centered form is not supported. In an update by row, rows without a gradient do not change, and
/// their ms and mom do not decay.
#[doc(alias = "tf.keras.optimizers.RMSprop")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    /// The fraction ρ of ms that is kept in each step, in [0, 1). 0.9 by default.
    pub rho: f64,
    /// The fraction of mom that is kept in each step, in [0, 1). 0 by default.
    pub momentum: f64,
    /// The term ε, greater than 0; 1e-7 by default.
    pub epsilon: f64,
}

impl Default for RmsProp {
    fn default() -> Self {
        RmsProp { rho: 0.9, momentum: 0.0, epsilon: 1e-7 }
    }
}

/// The FTRL rule ("follow the regularized leader").
///
/// With p = −lr_power and new = accum + g²:
/// - linear ← linear + g + 2 · l2_shrinkage · var − (newᵖ − accumᵖ) / lr · var
/// - var ← (sign(linear) · l1 − linear) / ((newᵖ + beta) / lr + 2 · l2) if |linear| > l1, else 0
/// - accum ← new
///
/// The new weight is a function of the new slots: if linear is still 0, as after a gradient of 0 in the first step, the
/// weight becomes 0 regardless of its value. The rule divides by the learning rate, so it must be greater than 0;
/// TensorFlow's default is 0.001.
///
/// An update by row does not change rows without a gradient.
#[doc(alias = "tf.keras.optimizers.Ftrl")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ftrl {
    /// The initial value of accum, at least 0. 0.1 by default.
    pub initial_accumulator_value: f64,
    /// The exponent of accum in the decay of rates, at most 0. The default, −0.5, is computed as a square root, which
    /// is faster than other powers.
    pub lr_power: f64,
    /// The L1 regularization: a weight is 0 unless |linear| is greater than this number. At least 0; 0 by default.
    pub l1: f64,
    /// The L2 regularization of weights, at least 0. 0 by default.
    pub l2: f64,
    /// The L2 regularization that is added to the gradient, except in accum. At least 0; 0 by default.
    pub l2_shrinkage: f64,
    /// A term that reduces the rates of the first steps, at least 0. 0 by default.
    pub beta: f64,
}

impl Default for Ftrl {
    fn default() -> Self {
        Ftrl {
            initial_accumulator_value: 0.1,
            lr_power: -0.5,
            l1: 0.0,
            l2: 0.0,
            l2_shrinkage: 0.0,
            beta: 0.0,
        }
    }
}
