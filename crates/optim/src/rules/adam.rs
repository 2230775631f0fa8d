//! Adam in TensorFlow's form, and its lazy variant.

use crate::error::Check;
use crate::{Float, Formula, InvalidHyperparameter, RuleSpec, SlotSpec, Step};
use serde::{Deserialize, Serialize};

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
    /// How much of m remains, in [0, 1). 0.9 by default.
    pub beta1: f64,
    /// How much of v remains, in [0, 1). 0.999 by default.
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

impl Formula for Adam {
    type Slots<T: Copy> = [T; 2];

    fn label(&self) -> &'static str {
        if self.lazy { "adam_lazy" } else { "adam" }
    }

    fn layout(&self) -> [SlotSpec; 2] {
        [SlotSpec::zeros("m"), SlotSpec::zeros("v")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.decay("beta1", self.beta1)?;
        check.decay("beta2", self.beta2)?;
        // An element that never had a gradient is 0 / (0 + ε).
        check.positive("epsilon", self.epsilon)
    }

    fn every_row(&self) -> bool {
        !self.lazy
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::Adam(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 2]) -> (F, [F; 2]) {
        let lr_t =
            at.learning_rate() * at.bias_correction(self.beta2).sqrt() / at.bias_correction(self.beta1);
        let [lr_t, epsilon] = [lr_t, self.epsilon].map(F::from_f64);
        let [beta1, rest1] = [self.beta1, 1.0 - self.beta1].map(F::from_f64);
        let [beta2, rest2] = [self.beta2, 1.0 - self.beta2].map(F::from_f64);
        move |var, grad, [m, v]| {
            let m = beta1 * m + rest1 * grad;
            let v = beta2 * v + rest2 * (grad * grad);
            (var - lr_t * m / (v.sqrt() + epsilon), [m, v])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleExt;

    // Powers of two keep all sums exact but the last division.
    const RULE: Adam = Adam { beta1: 0.5, beta2: 0.75, epsilon: 0.5, lazy: false };

    #[test]
    fn by_hand() {
        let (mut var, mut m, mut v) = ([1.0f64], [0.0f64], [0.0f64]);
        // lr_1 = 1 · √0.25 / 0.5 = 1, m = 1, v = 1: 1 − 1 / (1 + 0.5)
        RULE.update(Step::after(0, 1.0), &mut var, &[2.0], &mut [&mut m, &mut v]).unwrap();
        assert_eq!((m, v), ([1.0], [1.0]));
        assert_eq!(var, [1.0 - 1.0 / 1.5]);
        // lr_2 = 1 · √0.4375 / 0.75, m = −0.5, v = 0.75 + 0.25 · 4 = 1.75
        let before = var[0];
        RULE.update(Step::after(1, 1.0), &mut var, &[-2.0], &mut [&mut m, &mut v]).unwrap();
        assert_eq!((m, v), ([-0.5], [1.75]));
        let expected = before + (0.4375f64.sqrt() / 0.75) * 0.5 / (1.75f64.sqrt() + 0.5);
        assert!((var[0] - expected).abs() < 1e-15, "{} {expected}", var[0]);
    }

    #[test]
    fn absent_rows_decay_and_move_unless_lazy() {
        let start = ([1.0f64, 1.0], [1.0f64, 1.0], [1.0f64, 1.0]);

        let (mut var, mut m, mut v) = start;
        RULE.update_rows(Step::after(0, 1.0), &mut var, 1, &[1], &[1.0], &mut [&mut m, &mut v]).unwrap();
        assert_eq!((m, v), ([0.5, 1.0], [0.75, 1.0]));
        assert_eq!(var, [1.0 - 0.5 / (0.75f64.sqrt() + 0.5), 1.0 - 1.0 / 1.5]);

        let (mut var, mut m, mut v) = start;
        let lazy = Adam { lazy: true, ..RULE };
        lazy.update_rows(Step::after(0, 1.0), &mut var, 1, &[1], &[1.0], &mut [&mut m, &mut v]).unwrap();
        assert_eq!((m, v), ([1.0, 1.0], [1.0, 1.0]));
        assert_eq!(var, [1.0, 1.0 - 1.0 / 1.5]);
    }

    #[test]
    fn the_first_step_is_the_learning_rate() {
        // Whatever the size of the gradient, as long as it is far above ε.
        let (mut var, mut m, mut v) = ([0.0f32; 2], [0.0f32; 2], [0.0f32; 2]);
        let slots = &mut [&mut m[..], &mut v[..]];
        Adam::default().update(Step::after(0, 0.001), &mut var, &[100.0, -0.1], slots).unwrap();
        assert!((var[0] + 0.001).abs() < 1e-7 && (var[1] - 0.001).abs() < 1e-7, "{var:?}");
    }
}
