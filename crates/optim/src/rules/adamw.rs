//! Adam with decoupled weight decay, as in PyTorch and candle_nn.

use crate::error::Check;
use crate::{AdamW, Float, Formula, InvalidHyperparameter, RuleSpec, SlotSpec, Step};

impl Formula for AdamW {
    type Slots<T: Copy> = [T; 2];

    fn label(&self) -> &'static str {
        if self.lazy { "adamw_lazy" } else { "adamw" }
    }

    fn layout(&self) -> [SlotSpec; 2] {
        [SlotSpec::zeros("m"), SlotSpec::zeros("v")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.decay("beta1", self.beta1)?;
        check.decay("beta2", self.beta2)?;
        check.positive("epsilon", self.epsilon)?;
        check.not_negative("weight_decay", self.weight_decay)
    }

    fn every_row(&self) -> bool {
        !self.lazy
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::AdamW(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 2]) -> (F, [F; 2]) {
        // The order of operations is candle_nn's: any other would round differently.
        let [lr, epsilon] = [at.learning_rate(), self.epsilon].map(F::from_f64);
        let keep = F::from_f64(1.0 - at.learning_rate() * self.weight_decay);
        let [beta1, rest1, scale1] =
            [self.beta1, 1.0 - self.beta1, 1.0 / at.bias_correction(self.beta1)].map(F::from_f64);
        let [beta2, rest2, scale2] =
            [self.beta2, 1.0 - self.beta2, 1.0 / at.bias_correction(self.beta2)].map(F::from_f64);
        move |var, grad, [m, v]| {
            let m = m * beta1 + grad * rest1;
            let v = v * beta2 + grad * grad * rest2;
            let step = m * scale1 / ((v * scale2).sqrt() + epsilon);
            (var * keep - step * lr, [m, v])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleExt;

    #[test]
    fn by_hand() {
        let rule = AdamW { beta1: 0.5, beta2: 0.75, epsilon: 0.5, weight_decay: 0.5, lazy: false };
        let (mut var, mut m, mut v) = ([4.0f64], [0.0f64], [0.0f64]);
        // m = 1, m̂ = 2; v = 1, v̂ = 4: 4 · (1 − 0.25) − 0.5 · 2 / (2 + 0.5)
        rule.update(Step::after(0, 0.5), &mut var, &[2.0], &mut [&mut m, &mut v]).unwrap();
        assert_eq!((m, v), ([1.0], [1.0]));
        assert!((var[0] - 2.6).abs() < 1e-15, "{var:?}");
        // m = 1.5, m̂ = 2; v = 1.75, v̂ = 4: 2.6 · 0.75 − 0.5 · 2 / 2.5
        rule.update(Step::after(1, 0.5), &mut var, &[2.0], &mut [&mut m, &mut v]).unwrap();
        assert_eq!((m, v), ([1.5], [1.75]));
        assert!((var[0] - 1.55).abs() < 1e-15, "{var:?}");
    }

    #[test]
    fn without_a_gradient_weights_decay_by_lr_times_lambda() {
        let (mut var, mut m, mut v) = ([4.0f64, 8.0], [0.0f64; 2], [0.0f64; 2]);
        let rule = AdamW { weight_decay: 0.25, ..AdamW::default() };
        rule.update_rows(Step::after(0, 0.5), &mut var, 1, &[], &[], &mut [&mut m, &mut v]).unwrap();
        assert_eq!(var, [3.5, 7.0]);
        let lazy = AdamW { lazy: true, ..rule };
        lazy.update_rows(Step::after(0, 0.5), &mut var, 1, &[], &[], &mut [&mut m, &mut v]).unwrap();
        assert_eq!(var, [3.5, 7.0]);
    }
}
