//! Lion: steps by the sign of an average of gradients.

use crate::error::Check;
use crate::{Float, Formula, InvalidHyperparameter, Lion, RuleSpec, SlotSpec, Step};

impl Formula for Lion {
    type Slots<T: Copy> = [T; 1];

    fn label(&self) -> &'static str {
        if self.lazy { "lion_lazy" } else { "lion" }
    }

    fn layout(&self) -> [SlotSpec; 1] {
        [SlotSpec::zeros("m")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.decay("beta1", self.beta1)?;
        check.decay("beta2", self.beta2)?;
        check.not_negative("weight_decay", self.weight_decay)
    }

    fn every_row(&self) -> bool {
        !self.lazy
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::Lion(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
        let [lr, largest] = [at.learning_rate(), f64::INFINITY].map(F::from_f64);
        let keep = F::from_f64(1.0 - at.learning_rate() * self.weight_decay);
        let [beta1, rest1] = [self.beta1, 1.0 - self.beta1].map(F::from_f64);
        let [beta2, rest2] = [self.beta2, 1.0 - self.beta2].map(F::from_f64);
        move |var, grad, [m]| {
            let direction = m * beta1 + grad * rest1;
            let size = direction.abs();
            // No step for 0, and NaN for NaN.
            let step = size.select_at_most(F::ZERO, F::ZERO, lr.copysign(direction));
            let step = size.select_at_most(largest, step, direction);
            (var * keep - step, [m * beta2 + grad * rest2])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rule, RuleExt};

    /// Returns the variable after five steps from [1, −2, 0.5], with gradients that change their signs.
    fn after_five_steps(rule: &dyn Rule, rate: f64) -> [f64; 3] {
        let (mut var, mut slots) = ([1.0f64, -2.0, 0.5], vec![[0.0f64; 3]; rule.slots().len()]);
        for step in 1..=5 {
            let number = f64::from(step);
            let grad = [0.1 * number, -0.5 + 0.2 * number, if step % 2 == 0 { 0.3 } else { -0.3 }];
            let mut slots: Vec<&mut [f64]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
            rule.update(Step::after(step as u64 - 1, rate), &mut var, &grad, &mut slots).unwrap();
        }
        var
    }

    fn assert_close(found: [f64; 3], expected: [f64; 3]) {
        let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-12;
        assert!(found.iter().zip(&expected).all(close), "{found:?}, not {expected:?}");
    }

    #[test]
    fn results_are_those_of_keras() {
        // keras.optimizers.Lion of Keras 3.15, in f64.
        assert_close(after_five_steps(&Lion::default(), 0.01), [0.95, -2.01, 0.51]);
        let rule = Lion { beta1: 0.8, beta2: 0.95, weight_decay: 0.1, lazy: false };
        let expected = [0.9451098900549889, -2.0000599000599877, 0.5074850349725093];
        assert_close(after_five_steps(&rule, 0.01), expected);
    }

    #[test]
    fn by_hand() {
        let rule = Lion { beta1: 0.5, beta2: 0.75, weight_decay: 0.5, lazy: false };
        let (mut var, mut m) = ([4.0f64, 4.0, 4.0], [0.0f64, 1.0, 0.0]);
        // The directions are 1, −0.5 and 0; the weights decay to 3.
        rule.update(Step::after(0, 0.5), &mut var, &[2.0, -2.0, 0.0], &mut [&mut m]).unwrap();
        assert_eq!((var, m), ([2.5, 3.5, 3.0], [0.5, 0.25, 0.0]));
    }

    #[test]
    fn a_nan_is_not_taken_for_a_sign() {
        let (mut var, mut m) = ([1.0f32, 1.0], [0.0f32; 2]);
        Lion::default()
            .update(Step::after(0, 0.5), &mut var, &[f32::NAN, f32::INFINITY], &mut [&mut m])
            .unwrap();
        assert!(var[0].is_nan() && var[1] == 0.5, "{var:?}");
    }

    #[test]
    fn absent_rows_move_by_their_average_unless_lazy() {
        for (lazy, expected) in [(false, ([0.5f64, 1.5], [0.5f64, -0.5])), (true, ([1.0, 1.5], [1.0, -0.5]))]
        {
            let rule = Lion { beta1: 0.5, beta2: 0.5, weight_decay: 0.0, lazy };
            let (mut var, mut m) = ([1.0f64, 1.0], [1.0f64, 0.0]);
            rule.update_rows(Step::after(0, 0.5), &mut var, 1, &[1], &[-1.0], &mut [&mut m]).unwrap();
            assert_eq!((var, m), expected);
        }
    }
}
