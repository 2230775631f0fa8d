//! Rules as data: the hyper-parameters of each, and [`RuleSpec`] for any of them.
//!
//! Servers receive a `RuleSpec` and checkpoints contain it, so changing a field here changes these formats.
//! The formulas are in `rules/`.

use serde::{Deserialize, Serialize};

/// A rule of this crate with its hyper-parameters, as data. A server receives it to apply the rule, and a
/// checkpoint contains it with the slots.
///
/// ```
/// use distribute_optim::{Momentum, Rule, RuleSpec};
///
/// let rule: Box<dyn Rule> = Box::new(Momentum::nesterov(0.9));
/// let spec = rule.spec().expect("a rule of this crate");
/// assert_eq!(spec, RuleSpec::Momentum(Momentum { momentum: 0.9, nesterov: true }));
/// assert_eq!(spec.rule().name(), "momentum");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// The rule of gradient descent: var ← var − lr · g.
///
/// TensorFlow's default learning rate is 0.01. For momentum, use [`Momentum`](crate::Momentum).
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "SGD")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sgd;

/// The rule of gradient descent with momentum.
///
/// - accum ← momentum · accum + g
/// - var ← var − lr · accum, or with `nesterov` var ← var − lr · (g + momentum · accum)
///
/// The learning rate is not part of `accum`: when it changes, the new rate applies to all accumulated
/// gradients. In Keras the old rate applies to them. With a constant rate the two are equal.
///
/// In an update by row, absent rows do not move, and their `accum` does not decay.
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
    /// Creates the plain form.
    pub fn new(momentum: f64) -> Self {
        Momentum { momentum, nesterov: false }
    }

    /// Creates Nesterov's form.
    pub fn nesterov(momentum: f64) -> Self {
        Momentum { momentum, nesterov: true }
    }
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum::new(0.9)
    }
}

/// The Adam rule: steps by the ratio of running averages of the gradient and of its square.
///
/// - m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
/// - var ← var − lrₜ · m / (√v + ε) with lrₜ = lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ)
///
/// ε is added before the bias of v is corrected, as in TensorFlow. PyTorch, candle_nn and
/// [`AdamW`](crate::AdamW) add it after the correction. TensorFlow's default learning rate is 0.001.
///
/// An update by row treats absent rows as if their gradient were 0: m and v decay and all rows move in every
/// step. With `lazy`, absent rows do not change, which is far cheaper for large tables, but gives other
/// results.
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
    /// The term ε, above 0. 1e-7 by default.
    pub epsilon: f64,
    /// Whether an update by row does not change absent rows. `false` by default.
    pub lazy: bool,
}

impl Adam {
    /// Creates the lazy variant with default hyper-parameters.
    pub fn lazy() -> Self {
        Adam { lazy: true, ..Adam::default() }
    }
}

impl Default for Adam {
    fn default() -> Self {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-7, lazy: false }
    }
}

/// The AdamW rule: Adam with weight decay that is not part of the averages; bit-identical to
/// `candle_nn::AdamW` on a CPU.
///
/// - m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
/// - var ← var · (1 − lr · λ) − lr · m̂ / (√v̂ + ε) with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)
///
/// ε is added after the correction of v's bias, unlike in [`Adam`](crate::Adam). Defaults equal those of
/// candle_nn and PyTorch, which have a learning rate of 0.001. Keras has ε = 1e-7 and λ = 0.004.
///
/// An update by row treats absent rows as if their gradient were 0, so all rows decay and move. With `lazy`,
/// absent rows do not change.
#[doc(alias = "tf.keras.optimizers.AdamW")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// The fraction of m that is kept in each step, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The fraction of v that is kept in each step, in [0, 1). 0.999 by default.
    pub beta2: f64,
    /// The term ε, above 0. 1e-8 by default.
    pub epsilon: f64,
    /// The weight decay λ, at least 0. 0.01 by default.
    pub weight_decay: f64,
    /// Whether an update by row does not change absent rows. `false` by default.
    pub lazy: bool,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01, lazy: false }
    }
}

/// The Adagrad rule: accum ← accum + g², var ← var − lr · g / (√accum + ε).
///
/// TensorFlow's default learning rate is 0.001. An update by row does not change absent rows, and neither
/// would a gradient of 0.
#[doc(alias = "tf.keras.optimizers.Adagrad")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    /// The initial value of accum, at least 0. 0.1 by default.
    pub initial_accumulator_value: f64,
    /// The term ε, at least 0, and above 0 if accum starts at 0. 1e-7 by default.
    pub epsilon: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad { initial_accumulator_value: 0.1, epsilon: 1e-7 }
    }
}

/// The RMSprop rule, with momentum.
///
/// - ms ← ρ ms + (1 − ρ) g²
/// - mom ← momentum · mom + lr · g / √(ms + ε)
/// - var ← var − mom
///
/// ε is inside the root, and the learning rate is part of `mom`. TensorFlow's default learning rate is 0.001.
/// TensorFlow's centered form is not supported. In an update by row, absent rows do not move, and their ms and
/// mom do not decay.
#[doc(alias = "tf.keras.optimizers.RMSprop")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    /// The fraction ρ of ms that is kept in each step, in [0, 1). 0.9 by default.
    pub rho: f64,
    /// The fraction of mom that is kept in each step, in [0, 1). 0 by default.
    pub momentum: f64,
    /// The term ε, above 0. 1e-7 by default.
    pub epsilon: f64,
}

impl Default for RmsProp {
    fn default() -> Self {
        RmsProp { rho: 0.9, momentum: 0.0, epsilon: 1e-7 }
    }
}

/// The FTRL rule: follow the regularized leader.
///
/// With p = −lr_power and new = accum + g²:
/// - linear ← linear + g + 2 · l2_shrinkage · var − (newᵖ − accumᵖ) / lr · var
/// - var ← (sign(linear) · l1 − linear) / ((newᵖ + beta) / lr + 2 · l2) if |linear| > l1, else 0
/// - accum ← new
///
/// The weights are a function of the slots: if linear is 0, as before the first gradient, a weight becomes 0
/// regardless of its value. The learning rate is a divisor, so it has to be above 0; TensorFlow's default is
/// 0.001.
///
/// An update by row does not change absent rows.
#[doc(alias = "tf.keras.optimizers.Ftrl")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ftrl {
    /// The initial value of accum, at least 0. 0.1 by default.
    pub initial_accumulator_value: f64,
    /// The exponent of accum in the decay of rates, at most 0. The default, −0.5, is a square root; others are slower.
    pub lr_power: f64,
    /// The value that |linear| has to exceed for a weight other than 0, at least 0. 0 by default.
    pub l1: f64,
    /// The decay of weights, at least 0. 0 by default.
    pub l2: f64,
    /// The decay of weights as a part of the gradient that accum does not contain, at least 0. 0 by default.
    pub l2_shrinkage: f64,
    /// A term that reduces the rate of the first steps, at least 0. 0 by default.
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
