//! Rules as data: the hyper-parameters of each, and [`RuleSpec`], any of them. Servers receive it and checkpoints hold it, so a change of a
//! field here is a change of these formats. The formulas are in `rules/`.

use serde::{Deserialize, Serialize};

/// A rule of this crate with its hyper-parameters, as data: a server receives it to apply the rule there, and a checkpoint holds it
/// next to the slots.
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
    /// [`Sgd`].
    Sgd(Sgd),
    /// [`Momentum`].
    Momentum(Momentum),
    /// [`Adam`].
    Adam(Adam),
    /// [`AdamW`].
    AdamW(AdamW),
    /// [`Adagrad`].
    Adagrad(Adagrad),
    /// [`RmsProp`].
    RmsProp(RmsProp),
    /// [`Ftrl`].
    Ftrl(Ftrl),
}

/// Gradient descent: var ← var − lr · g.
///
/// TensorFlow's default learning rate for it is 0.01. With momentum, it is [`Momentum`](crate::Momentum).
#[doc(alias = "tf.keras.optimizers.SGD")]
#[doc(alias = "SGD")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sgd;

/// Gradient descent with momentum.
///
/// accum ← momentum · accum + g, then var ← var − lr · accum, or with `nesterov`
/// var ← var − lr · (g + momentum · accum).
///
/// The learning rate isn't part of `accum`: after it changes, what was accumulated counts with the new one. (In
/// Keras it counts with the old one. As long as the rate stays the two are the same.)
///
/// By row, `accum` of absent rows neither decays nor moves them.
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
    /// The share of the past that remains, in [0, 1). 0.9 by default; TensorFlow has no default for it but 0.
    pub momentum: f64,
    /// Whether to look ahead by Nesterov's formula. `false` by default.
    pub nesterov: bool,
}

impl Momentum {
    /// The plain form.
    pub fn new(momentum: f64) -> Self {
        Momentum { momentum, nesterov: false }
    }

    /// Nesterov's form.
    pub fn nesterov(momentum: f64) -> Self {
        Momentum { momentum, nesterov: true }
    }
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum::new(0.9)
    }
}

/// Adam: steps by the ratio of running averages of the gradient and of its square.
///
/// m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², var ← var − lrₜ · m / (√v + ε)
/// with lrₜ = lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ).
///
/// So ε is added before the bias of v is corrected, as TensorFlow does; PyTorch and candle_nn add it after, as
/// [`AdamW`](crate::AdamW) does here. TensorFlow's default learning rate is 0.001.
///
/// By row, it acts as if the gradient of absent rows were 0: m and v decay and the rows move, all of them in every
/// step. With `lazy`, absent rows stay as they are: far cheaper for large tables, but other numbers.
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
    /// The share of m that remains, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The share of v that remains, in [0, 1). 0.999 by default.
    pub beta2: f64,
    /// ε, above 0. 1e-7 by default.
    pub epsilon: f64,
    /// Whether an update by row leaves absent rows alone. `false` by default.
    pub lazy: bool,
}

impl Adam {
    /// The lazy variant with default hyper-parameters.
    pub fn lazy() -> Self {
        Adam { lazy: true, ..Adam::default() }
    }
}

impl Default for Adam {
    fn default() -> Self {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-7, lazy: false }
    }
}

/// Adam with weight decay that doesn't go through the averages; the same to the bit as `candle_nn::AdamW` on a CPU.
///
/// m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²,
/// var ← var · (1 − lr · λ) − lr · m̂ / (√v̂ + ε) with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ).
///
/// ε is added after the correction of v's bias, unlike in [`Adam`](crate::Adam). Defaults are those of candle_nn and
/// PyTorch, too, with a learning rate of 0.001; Keras has ε = 1e-7 and λ = 0.004.
///
/// By row, it acts as if the gradient of absent rows were 0, so all rows decay and move; with `lazy`, absent rows
/// stay as they are.
#[doc(alias = "tf.keras.optimizers.AdamW")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// The share of m that remains, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// The share of v that remains, in [0, 1). 0.999 by default.
    pub beta2: f64,
    /// ε, above 0. 1e-8 by default.
    pub epsilon: f64,
    /// λ, at least 0. 0.01 by default.
    pub weight_decay: f64,
    /// Whether an update by row leaves absent rows alone. `false` by default.
    pub lazy: bool,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01, lazy: false }
    }
}

/// Adagrad: accum ← accum + g², var ← var − lr · g / (√accum + ε).
///
/// TensorFlow's default learning rate is 0.001. By row, absent rows stay: so they would for a gradient of 0.
#[doc(alias = "tf.keras.optimizers.Adagrad")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    /// The initial value of accum, at least 0. 0.1 by default.
    pub initial_accumulator_value: f64,
    /// ε, at least 0, and above if accum starts at 0. 1e-7 by default.
    pub epsilon: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad { initial_accumulator_value: 0.1, epsilon: 1e-7 }
    }
}

/// RMSprop: ms ← ρ ms + (1 − ρ) g², mom ← momentum · mom + lr · g / √(ms + ε), var ← var − mom.
///
/// ε is inside the root and the learning rate inside `mom`. TensorFlow's default learning rate is 0.001; its
/// centered form isn't here. By row, ms and mom of absent rows neither decay nor move them.
#[doc(alias = "tf.keras.optimizers.RMSprop")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    /// ρ: how much of ms remains, in [0, 1). 0.9 by default.
    pub rho: f64,
    /// The share of mom that remains, in [0, 1). 0 by default.
    pub momentum: f64,
    /// ε, above 0. 1e-7 by default.
    pub epsilon: f64,
}

impl Default for RmsProp {
    fn default() -> Self {
        RmsProp { rho: 0.9, momentum: 0.0, epsilon: 1e-7 }
    }
}

/// Follow the regularized leader.
///
/// With p = −lr_power and new = accum + g²:
/// linear ← linear + g + 2 · l2_shrinkage · var − (newᵖ − accumᵖ) / lr · var;
/// var ← (sign(linear) · l1 − linear) / ((newᵖ + beta) / lr + 2 · l2) if |linear| > l1, else 0; accum ← new.
///
/// The weights are a function of the slots: where linear is 0, as before the first gradient, a weight becomes 0
/// whatever it was. The learning rate divides, so it must be above 0; TensorFlow's default is 0.001.
///
/// By row, absent rows stay.
#[doc(alias = "tf.keras.optimizers.Ftrl")]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ftrl {
    /// The initial value of accum, at least 0. 0.1 by default.
    pub initial_accumulator_value: f64,
    /// The power of accum by which rates fall, at most 0. −0.5 by default, a square root; others are slower.
    pub lr_power: f64,
    /// The bound that |linear| must exceed for a weight other than 0, at least 0. 0 by default.
    pub l1: f64,
    /// The decay of weights, at least 0. 0 by default.
    pub l2: f64,
    /// Like `l2`, but as part of the gradient that accum doesn't see, at least 0. 0 by default.
    pub l2_shrinkage: f64,
    /// Lowers the rate of the first steps, at least 0. 0 by default.
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
