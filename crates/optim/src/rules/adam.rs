//! Adam, as TensorFlow defines it, and its lazy variant.

use crate::error::Check;
use crate::{Adam, Float, Formula, InvalidHyperparameter, RuleSpec, SlotSpec, Step};

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
        // An element without any gradient is 0 / (0 + ε).
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

    // Powers of two keep all results exact except for the last division.
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
        // Independent of the size of the gradient, if it is far above ε.
        let (mut var, mut m, mut v) = ([0.0f32; 2], [0.0f32; 2], [0.0f32; 2]);
        let slots = &mut [&mut m[..], &mut v[..]];
        Adam::default().update(Step::after(0, 0.001), &mut var, &[100.0, -0.1], slots).unwrap();
        assert!((var[0] + 0.001).abs() < 1e-7 && (var[1] - 0.001).abs() < 1e-7, "{var:?}");
    }
}
