//! NAdam: Adam with Nesterov momentum, as Keras defines it.

use crate::error::Check;
use crate::{Float, Formula, InvalidHyperparameter, NAdam, RuleSpec, SlotSpec, Step};
use std::sync::LazyLock;

/// The base of the momentum schedule.
const DECAY: f64 = 0.96;

/// The number of steps after which 1 − ½ · 0.96ᵗ is 1 in f64.
const SCHEDULED: usize = 900;

/// The products of 1 − ½ · 0.96ⁱ for i from 1 to t, for each t up to [`SCHEDULED`].
static PRODUCTS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let mut product = 1.0;
    let mut next = |step: usize| {
        if step > 0 {
            product *= schedule(step as u64);
        }
        product
    };
    (0..=SCHEDULED).map(&mut next).collect()
});

/// Returns 1 − ½ · 0.96ᵗ for t = `step`: the momentum of the step as a fraction of β₁.
fn schedule(step: u64) -> f64 {
    1.0 - 0.5 * DECAY.powi(i32::try_from(step).unwrap_or(i32::MAX))
}

impl NAdam {
    /// Returns the momentum of the step with number `step`, and the product of the momenta of all steps up to it.
    fn momentum(&self, step: u64) -> (f64, f64) {
        let scheduled = PRODUCTS[usize::try_from(step).unwrap_or(SCHEDULED).min(SCHEDULED)];
        let power = self.beta1.powi(i32::try_from(step).unwrap_or(i32::MAX));
        (self.beta1 * schedule(step), power * scheduled)
    }
}

impl Formula for NAdam {
    type Slots<T: Copy> = [T; 2];

    fn label(&self) -> &'static str {
        if self.lazy { "nadam_lazy" } else { "nadam" }
    }

    fn layout(&self) -> [SlotSpec; 2] {
        [SlotSpec::zeros("m"), SlotSpec::zeros("v")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.decay("beta1", self.beta1)?;
        check.decay("beta2", self.beta2)?;
        check.positive("epsilon", self.epsilon)
    }

    fn every_row(&self) -> bool {
        !self.lazy
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::NAdam(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 2]) -> (F, [F; 2]) {
        let (now, made) = self.momentum(at.number());
        let (next, with_next) = self.momentum(at.number().saturating_add(1));
        let [of_m, of_grad] = [next / (1.0 - with_next), (1.0 - now) / (1.0 - made)]
            .map(|scale| F::from_f64(at.learning_rate() * scale));
        let [epsilon, scale] = [self.epsilon, 1.0 / at.bias_correction(self.beta2)].map(F::from_f64);
        let [beta1, rest1] = [self.beta1, 1.0 - self.beta1].map(F::from_f64);
        let [beta2, rest2] = [self.beta2, 1.0 - self.beta2].map(F::from_f64);
        move |var, grad, [m, v]| {
            let m = beta1 * m + rest1 * grad;
            let v = beta2 * v + rest2 * (grad * grad);
            (var - (of_m * m + of_grad * grad) / ((v * scale).sqrt() + epsilon), [m, v])
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
        let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-7;
        assert!(found.iter().zip(&expected).all(close), "{found:?}, not {expected:?}");
    }

    #[test]
    fn results_are_those_of_keras() {
        // keras.optimizers.Nadam of Keras 3.15, in f64, whose schedule of momentum is computed in f32.
        let expected = [0.9519057766493303, -2.0039312055128833, 0.5100977074416212];
        assert_close(after_five_steps(&NAdam::default(), 0.01), expected);
        let rule = NAdam { beta1: 0.8, beta2: 0.95, epsilon: 1e-3, lazy: false };
        let expected = [0.7314394812712302, -2.027908111973264, 0.5543707564306869];
        assert_close(after_five_steps(&rule, 0.05), expected);
    }

    #[test]
    fn the_product_of_momenta_is_that_of_the_definition() {
        for beta1 in [0.9, 0.999, 0.0] {
            let rule = NAdam { beta1, ..NAdam::default() };
            let mut product = 1.0;
            for step in 1..2000u64 {
                let (momentum, made) = rule.momentum(step);
                product *= beta1 * (1.0 - 0.5 * 0.96f64.powi(step as i32));
                assert_eq!(momentum, beta1 * (1.0 - 0.5 * 0.96f64.powi(step as i32)));
                assert!((made - product).abs() <= 1e-12 * product, "{step}: {made} {product}");
            }
        }
        assert_eq!(schedule(SCHEDULED as u64), 1.0);
        assert_eq!(NAdam::default().momentum(u64::MAX), (0.9, 0.0));
    }
}
