//! RMSprop with momentum.

use crate::error::Check;
use crate::{Float, Formula, InvalidHyperparameter, RmsProp, RuleSpec, SlotSpec, Step};

impl Formula for RmsProp {
    type Slots<T: Copy> = [T; 2];

    fn label(&self) -> &'static str {
        "rmsprop"
    }

    fn layout(&self) -> [SlotSpec; 2] {
        [SlotSpec::zeros("ms"), SlotSpec::zeros("mom")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.decay("rho", self.rho)?;
        check.decay("momentum", self.momentum)?;
        // An element without any gradient is 0 / √(0 + ε).
        check.positive("epsilon", self.epsilon)
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::RmsProp(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 2]) -> (F, [F; 2]) {
        let [lr, momentum, epsilon] = [at.learning_rate(), self.momentum, self.epsilon].map(F::from_f64);
        let [rho, rest] = [self.rho, 1.0 - self.rho].map(F::from_f64);
        move |var, grad, [ms, mom]| {
            let ms = rho * ms + rest * (grad * grad);
            let mom = momentum * mom + lr * grad / (ms + epsilon).sqrt();
            (var - mom, [ms, mom])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleExt;

    #[test]
    fn by_hand() {
        let rule = RmsProp { rho: 0.5, momentum: 0.5, epsilon: 0.25 };
        let (mut var, mut ms, mut mom) = ([1.0f64, 1.0], [0.0f64, 3.5], [0.0f64, 4.0]);
        // ms = 0.5 · 2² = 2, mom = 0.5 · 2 / √2.25; without a gradient ms and mom halve.
        rule.update(Step::after(0, 0.5), &mut var, &[2.0, 0.0], &mut [&mut ms, &mut mom]).unwrap();
        assert_eq!(ms, [2.0, 1.75]);
        assert_eq!(mom, [1.0 / 1.5, 2.0]);
        assert_eq!(var, [1.0 - 1.0 / 1.5, -1.0]);
        // ms = 1 + 0.5 · 2² = 3, mom = 0.33… + 1 / √3.25
        rule.update(Step::after(1, 0.5), &mut var, &[2.0, 0.0], &mut [&mut ms, &mut mom]).unwrap();
        assert_eq!(ms, [3.0, 0.875]);
        let expected = 0.5 / 1.5 + 1.0 / 3.25f64.sqrt();
        assert!((mom[0] - expected).abs() < 1e-15 && mom[1] == 1.0, "{mom:?}");
        assert!((var[0] - (1.0 - 1.0 / 1.5 - expected)).abs() < 1e-15 && var[1] == -2.0, "{var:?}");
    }
}
