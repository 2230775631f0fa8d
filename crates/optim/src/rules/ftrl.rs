//! FTRL-proximal: sparse weights for linear models.

use crate::error::Check;
use crate::{Float, Formula, Ftrl, InvalidHyperparameter, RuleSpec, SlotSpec, Step};

impl Formula for Ftrl {
    type Slots<T: Copy> = [T; 2];

    fn label(&self) -> &'static str {
        "ftrl"
    }

    fn layout(&self) -> [SlotSpec; 2] {
        [SlotSpec::new("accum", self.initial_accumulator_value), SlotSpec::zeros("linear")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        let falling = self.lr_power.is_finite() && self.lr_power <= 0.0;
        check.not_negative("initial_accumulator_value", self.initial_accumulator_value)?;
        check.that(falling, "lr_power", self.lr_power, "finite and at most 0")?;
        check.not_negative("l1", self.l1)?;
        check.not_negative("l2", self.l2)?;
        check.not_negative("l2_shrinkage", self.l2_shrinkage)?;
        check.not_negative("beta", self.beta)
    }

    fn check_learning_rate(&self, learning_rate: f64) -> Result<(), InvalidHyperparameter> {
        Check(self.label()).positive("learning_rate", learning_rate)
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::Ftrl(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 2]) -> (F, [F; 2]) {
        let per_lr = 1.0 / at.learning_rate();
        let [power, l1, per_lr, shrinkage] =
            [-self.lr_power, self.l1, per_lr, 2.0 * self.l2_shrinkage].map(F::from_f64);
        let held = F::from_f64(self.beta / at.learning_rate() + 2.0 * self.l2);
        let root = self.lr_power == -0.5;
        move |var, grad, [accum, linear]| {
            let to_power = |x: F| if root { x.sqrt() } else { x.powf(power) };
            let new = accum + grad * grad;
            let strength = to_power(new);
            let linear = linear + grad + shrinkage * var - (strength - to_power(accum)) * per_lr * var;
            // In this order, NaN does not give a weight of 0.
            let moved = (l1.copysign(linear) - linear) / (strength * per_lr + held);
            (linear.abs().select_at_most(l1, F::ZERO, moved), [new, linear])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleExt;

    #[test]
    fn by_hand() {
        let rule = Ftrl { l1: 0.5, l2: 0.25, l2_shrinkage: 0.125, ..Ftrl::default() };
        let (mut var, mut accum, mut linear) = ([1.0f64, 1.0], [2.25f64, 2.25], [0.0f64; 2]);
        // new = 6.25: linear = 2 + 0.25 − (2.5 − 1.5) / 0.5 = 0.25, not above l1, so 0.
        // linear = −2 + 0.25 − 2 = −3.75, var = (−0.5 + 3.75) / (2.5 / 0.5 + 0.5)
        rule.update(Step::after(0, 0.5), &mut var, &[2.0, -2.0], &mut [&mut accum, &mut linear]).unwrap();
        assert_eq!((accum, linear), ([6.25, 6.25], [0.25, -3.75]));
        assert_eq!(var, [0.0, 3.25 / 5.5]);
        // new = 42.25: linear = 0.25 + 6 + 0 − 0 = 6.25, var = (0.5 − 6.25) / (6.5 / 0.5 + 0.5)
        rule.update_rows(Step::after(1, 0.5), &mut var, 1, &[0], &[6.0], &mut [&mut accum, &mut linear])
            .unwrap();
        assert_eq!((accum, linear), ([42.25, 6.25], [6.25, -3.75]));
        assert_eq!(var, [-5.75 / 13.5, 3.25 / 5.5]);
    }

    #[test]
    fn other_powers_and_beta() {
        // newᵖ = 4: linear = 1 − (4 − 3) / 0.5 · 1 = −1, var = 1 / ((4 + 1) / 0.5)
        let rule = Ftrl { lr_power: -1.0, beta: 1.0, ..Ftrl::default() };
        let (mut var, mut accum, mut linear) = ([1.0f64], [3.0f64], [0.0f64]);
        rule.update(Step::after(0, 0.5), &mut var, &[1.0], &mut [&mut accum, &mut linear]).unwrap();
        assert_eq!((accum, linear), ([4.0], [-1.0]));
        assert_eq!(var, [0.1]);
    }

    #[test]
    fn a_nan_is_not_taken_for_zero() {
        let (mut var, mut accum, mut linear) = ([1.0f32], [0.1f32], [0.0f32]);
        let slots = &mut [&mut accum[..], &mut linear[..]];
        Ftrl::default().update(Step::after(0, 0.5), &mut var, &[f32::NAN], slots).unwrap();
        assert!(var[0].is_nan());
    }
}
