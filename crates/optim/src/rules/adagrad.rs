//! Adagrad, in which each element has a rate that decays with its squared gradients.

use crate::error::Check;
use crate::{Adagrad, Float, Formula, InvalidHyperparameter, RuleSpec, SlotSpec, Step};

impl Formula for Adagrad {
    type Slots<T: Copy> = [T; 1];

    fn label(&self) -> &'static str {
        "adagrad"
    }

    fn layout(&self) -> [SlotSpec; 1] {
        [SlotSpec::new("accum", self.initial_accumulator_value)]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.not_negative("initial_accumulator_value", self.initial_accumulator_value)?;
        check.not_negative("epsilon", self.epsilon)?;
        // An element without any gradient would be 0 / 0.
        let divisible = self.initial_accumulator_value > 0.0 || self.epsilon > 0.0;
        check.that(divisible, "epsilon", self.epsilon, "greater than 0 if initial_accumulator_value is 0")
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::Adagrad(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
        let [lr, epsilon] = [at.learning_rate(), self.epsilon].map(F::from_f64);
        move |var, grad, [accum]| {
            let accum = accum + grad * grad;
            (var - lr * grad / (accum.sqrt() + epsilon), [accum])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rule, RuleExt};

    #[test]
    fn by_hand() {
        let rule = Adagrad { initial_accumulator_value: 0.25, epsilon: 0.5 };
        assert_eq!(rule.slots(), [SlotSpec::new("accum", 0.25)]);
        let (mut var, mut accum) = ([1.0f32, 1.0], [0.25f32, 4.0]);
        // 1 − 0.5 · 0 / …, 1 − 0.5 · 1.5 / (2.5 + 0.5)
        rule.update(Step::after(0, 0.5), &mut var, &[0.0, 1.5], &mut [&mut accum]).unwrap();
        assert_eq!((var, accum), ([1.0, 0.75], [0.25, 6.25]));
        // accum = 42.25: 0.75 + 1 · 6 / (6.5 + 0.5)
        rule.update_rows(Step::after(1, 1.0), &mut var, 1, &[1], &[-6.0], &mut [&mut accum]).unwrap();
        assert_eq!(accum, [0.25, 42.25]);
        assert!((var[1] - (0.75 + 6.0 / 7.0)).abs() < 1e-6, "{var:?}");
    }
}
