//! Gradient descent with plain or Nesterov momentum.

use crate::error::Check;
use crate::{Float, Formula, InvalidHyperparameter, Momentum, RuleSpec, SlotSpec, Step};

impl Formula for Momentum {
    type Slots<T: Copy> = [T; 1];

    fn label(&self) -> &'static str {
        "momentum"
    }

    fn layout(&self) -> [SlotSpec; 1] {
        [SlotSpec::zeros("accum")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        Check(self.label()).decay("momentum", self.momentum)
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::Momentum(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
        let [lr, momentum] = [at.learning_rate(), self.momentum].map(F::from_f64);
        let nesterov = self.nesterov;
        move |var, grad, [accum]| {
            let accum = momentum * accum + grad;
            let step = if nesterov { grad + momentum * accum } else { accum };
            (var - lr * step, [accum])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleExt;

    #[test]
    fn plain_by_hand() {
        let (rule, mut var, mut accum) = (Momentum::new(0.5), [1.0f32, 2.0], [0.0f32; 2]);
        rule.update(Step::after(0, 0.5), &mut var, &[1.0, -2.0], &mut [&mut accum]).unwrap();
        assert_eq!((var, accum), ([0.5, 3.0], [1.0, -2.0]));
        rule.update(Step::after(1, 0.5), &mut var, &[1.0, 0.0], &mut [&mut accum]).unwrap();
        assert_eq!((var, accum), ([-0.25, 3.5], [1.5, -1.0]));
    }

    #[test]
    fn nesterov_by_hand() {
        let (rule, mut var, mut accum) = (Momentum::nesterov(0.5), [1.0f64, 2.0], [0.0f64; 2]);
        rule.update(Step::after(0, 0.5), &mut var, &[1.0, -2.0], &mut [&mut accum]).unwrap();
        assert_eq!((var, accum), ([0.25, 3.5], [1.0, -2.0]));
        rule.update(Step::after(1, 0.5), &mut var, &[1.0, 0.0], &mut [&mut accum]).unwrap();
        assert_eq!((var, accum), ([-0.625, 3.75], [1.5, -1.0]));
    }

    #[test]
    fn absent_rows_stay() {
        let (rule, mut var, mut accum) = (Momentum::new(0.5), [1.0f32, 2.0], [4.0f32; 2]);
        rule.update_rows(Step::after(0, 0.5), &mut var, 1, &[1], &[2.0], &mut [&mut accum]).unwrap();
        assert_eq!((var, accum), ([1.0, 0.0], [4.0, 4.0]));
    }
}
