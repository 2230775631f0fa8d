//! LAMB: steps of Adam, scaled for each variable by the ratio of the norms of weights and step.

use crate::error::Check;
use crate::shaped::{Lanes, Shaped, shaped_rule};
use crate::{Float, InvalidHyperparameter, Lamb, RuleSpec, SlotSpec, Step, Unit};

shaped_rule!(Lamb);

impl Shaped for Lamb {
    const UNIT: Unit = Unit::Variable;
    const EVERY_ROW: bool = true;

    fn label(&self) -> &'static str {
        "lamb"
    }

    fn layout(&self) -> Vec<SlotSpec> {
        vec![SlotSpec::zeros("m"), SlotSpec::zeros("v")]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.decay("beta1", self.beta1)?;
        check.decay("beta2", self.beta2)?;
        check.positive("epsilon", self.epsilon)?;
        check.not_negative("weight_decay", self.weight_decay)
    }

    fn spec(&self) -> RuleSpec {
        RuleSpec::Lamb(*self)
    }

    fn apply<F: Float>(&self, at: Step, _: &[usize], var: &mut [F], grad: &[F], slots: &mut [&mut [F]]) {
        let [m, v] = slots else { return };
        let [beta1, rest1] = [self.beta1, 1.0 - self.beta1].map(F::from_f64);
        let [beta2, rest2] = [self.beta2, 1.0 - self.beta2].map(F::from_f64);
        let [of_m, of_v] = [self.beta1, self.beta2].map(|beta| F::from_f64(1.0 / at.bias_correction(beta)));
        let [epsilon, decay] = [self.epsilon, self.weight_decay].map(F::from_f64);
        let direction = |var: F, m: F, v: F| of_m * m / ((of_v * v).sqrt() + epsilon) + decay * var;

        let (mut of_weights, mut of_direction) = (Lanes::default(), Lanes::default());
        let slots = m.chunks_mut(Lanes::COUNT).zip(v.chunks_mut(Lanes::COUNT));
        let weights = var.chunks(Lanes::COUNT).zip(grad.chunks(Lanes::COUNT));
        for ((m, v), (var, grad)) in slots.zip(weights) {
            for (i, ((m, v), (&var, &grad))) in m.iter_mut().zip(v).zip(var.iter().zip(grad)).enumerate() {
                *m = beta1 * *m + rest1 * grad;
                *v = beta2 * *v + rest2 * (grad * grad);
                of_weights.add_square(i, var);
                of_direction.add_square(i, direction(var, *m, *v));
            }
        }
        let (weights, step) = (of_weights.sum().sqrt(), of_direction.sum().sqrt());
        let ratio = if self.adapt && weights > 0.0 && step > 0.0 { weights / step } else { 1.0 };
        let rate = F::from_f64(at.learning_rate() * ratio);
        for ((var, m), v) in var.iter_mut().zip(m.iter()).zip(v.iter()) {
            *var = *var - rate * direction(*var, *m, *v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shaped::testing::{after_four_steps, assert_near};
    use crate::{Rule, RuleExt, UpdateError};

    #[test]
    fn results_are_those_of_keras() {
        // keras.optimizers.Lamb of Keras 3.15, in f64.
        let rule = Lamb::default();
        assert_near(&after_four_steps(&rule, &[], 0.05), &[-0.8103374999999999], 1e-12);
        let expected = [-0.8092732642488949, 0.19520410737887986, 0.7649471509858083];
        assert_near(&after_four_steps(&rule, &[3], 0.05), &expected, 1e-12);
        let expected = [
            -0.808742524192913,
            0.19210263576745168,
            0.7701787718713822,
            -0.23116273865817638,
            0.6069326393607279,
            -0.41989187299502206,
        ];
        assert_near(&after_four_steps(&rule, &[2, 3], 0.05), &expected, 1e-12);
    }

    #[test]
    fn results_with_decay_are_those_of_the_formula() {
        // A few lines of NumPy.
        let rule = Lamb { beta1: 0.8, beta2: 0.95, epsilon: 1e-3, weight_decay: 0.1, adapt: true };
        let expected = [
            -0.7940315111636046,
            0.1856427838296973,
            0.7616576368661747,
            -0.2295140397713884,
            0.583856692755786,
            -0.40389918370281996,
        ];
        assert_near(&after_four_steps(&rule, &[2, 3], 0.05), &expected, 1e-12);
        let expected = [-0.7782103490491004, 0.18398222356630642, 0.7442066045704299];
        assert_near(&after_four_steps(&Lamb { adapt: false, ..rule }, &[3], 0.05), &expected, 1e-12);
    }

    /// Checks variables of zeros, such as biases at first, and gradients of zeros.
    #[test]
    fn norms_of_zero_have_the_ratio_one() {
        let (mut var, mut m, mut v) = ([0.0f32; 3], [0.0; 3], [0.0; 3]);
        let mut step = |grad: [f32; 3]| {
            let slots = &mut [&mut m[..], &mut v[..]];
            Lamb::default().update_shaped(Step::after(0, 0.5), &[3], &mut var, &grad, slots).unwrap();
            var
        };
        assert_eq!(step([0.0; 3]), [0.0; 3]);
        let moved = step([1.0, -2.0, 0.0]);
        assert!(
            (moved[0] + 0.5).abs() < 1e-5 && (moved[1] - 0.5).abs() < 1e-5 && moved[2] == 0.0,
            "{moved:?}"
        );
    }

    // INV-12
    #[test]
    fn ranges_and_rows_are_refused() {
        let (mut var, mut m, mut v, at) = ([1.0f32; 4], [0.0; 4], [0.0; 4], Step::after(0, 0.1));
        let (rule, slots) = (Lamb::default(), &mut [&mut m[..], &mut v[..]]);
        let needs = UpdateError::NeedsShape { rule: "lamb", unit: Unit::Variable };
        assert_eq!(rule.update(at, &mut var, &[1.0; 4], slots).unwrap_err(), needs);
        let error = rule.update_rows(at, &mut var, 2, &[0], &[1.0; 2], slots).unwrap_err();
        assert_eq!(error, needs);
        assert_eq!(
            error.to_string(),
            "rule lamb needs complete variables: apply it to them by update_shaped"
        );
        rule.update_shaped::<f32>(at, &[0, 3], &mut [], &[], &mut [&mut [], &mut []]).unwrap();
        assert!(rule.moves_absent_rows() && rule.program(at).unwrap().is_none());
        assert_eq!((var, m), ([1.0; 4], [0.0; 4]));
    }
}
