//! Adafactor, whose second moments are products of a moment for each row and one for each column.

use crate::error::Check;
use crate::shaped::{Lanes, Shaped, shaped_rule};
use crate::{Adafactor, Float, InvalidHyperparameter, RuleSpec, SlotShape, SlotSpec, Step, Unit};

shaped_rule!(Adafactor);

impl Shaped for Adafactor {
    const UNIT: Unit = Unit::Variable;
    const EVERY_ROW: bool = true;

    fn label(&self) -> &'static str {
        "adafactor"
    }

    fn layout(&self) -> Vec<SlotSpec> {
        vec![
            SlotSpec::zeros("r").with_shape(SlotShape::RowFactor),
            SlotSpec::zeros("c").with_shape(SlotShape::ColumnFactor),
            SlotSpec::zeros("v").with_shape(SlotShape::Unfactored),
        ]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        let decays = self.beta_2_decay.is_finite() && self.beta_2_decay < 0.0;
        check.that(decays, "beta_2_decay", self.beta_2_decay, "finite and less than 0")?;
        check.positive("epsilon_1", self.epsilon_1)?;
        check.not_negative("epsilon_2", self.epsilon_2)?;
        check.positive("clip_threshold", self.clip_threshold)
    }

    fn spec(&self) -> RuleSpec {
        RuleSpec::Adafactor(*self)
    }

    fn apply<F: Float>(&self, at: Step, dims: &[usize], var: &mut [F], grad: &[F], slots: &mut [&mut [F]]) {
        let step = at.number() as f64;
        let beta2 = 1.0 - step.powf(self.beta_2_decay);
        let rate =
            if self.relative_step { at.learning_rate().min(1.0 / step.sqrt()) } else { at.learning_rate() };
        let rate = rate * rms(var).max(self.epsilon_2);
        // The steps before they are scaled by their root mean square, which needs all of them.
        let mut steps = vec![F::ZERO; grad.len()];
        let ([r, c, _], [.., rows, columns]) = (&mut *slots, dims) else {
            let [_, _, v] = slots else { return };
            let [kept, rest, epsilon] = [beta2, 1.0 - beta2, self.epsilon_1].map(F::from_f64);
            for ((v, grad), step) in v.iter_mut().zip(grad).zip(&mut steps) {
                *v = kept * *v + rest * (*grad * *grad + epsilon);
                *step = *grad / v.sqrt();
            }
            return self.subtract(rate, var, &steps);
        };
        let matrices = r.chunks_exact_mut(*rows).zip(c.chunks_exact_mut(*columns));
        let of_matrix = grad.chunks_exact(rows * columns).zip(steps.chunks_exact_mut(rows * columns));
        for ((r, c), (grad, steps)) in matrices.zip(of_matrix) {
            self.factors(beta2, grad, r, c);
            divide(grad, r, c, steps);
        }
        self.subtract(rate, var, &steps);
    }
}

impl Adafactor {
    /// Updates the moments of the rows and columns of a matrix.
    fn factors<F: Float>(&self, beta2: f64, grad: &[F], r: &mut [F], c: &mut [F]) {
        let [kept, rest] = [beta2, 1.0 - beta2].map(F::from_f64);
        let mean = |sum: f64, count: usize| F::from_f64(sum / count as f64 + self.epsilon_1);
        let mut of_columns = vec![0.0; c.len()];
        for (r, grad) in r.iter_mut().zip(grad.chunks_exact(c.len())) {
            let mut of_row = Lanes::default();
            for (at, eight) in grad.chunks(Lanes::COUNT).enumerate() {
                let sums = &mut of_columns[at * Lanes::COUNT..][..eight.len()];
                for (i, (grad, sum)) in eight.iter().zip(sums).enumerate() {
                    let square = of_row.add_square(i, *grad);
                    *sum += square;
                }
            }
            *r = kept * *r + rest * mean(of_row.sum(), of_columns.len());
        }
        for (c, sum) in c.iter_mut().zip(of_columns) {
            *c = kept * *c + rest * mean(sum, r.len());
        }
    }

    /// Subtracts the steps, multiplied by the rate, from the variable. If their root mean square is greater than the
    /// threshold, they are scaled down to it.
    fn subtract<F: Float>(&self, rate: f64, var: &mut [F], steps: &[F]) {
        let rate = F::from_f64(rate / (rms(steps) / self.clip_threshold).max(1.0));
        var.iter_mut().zip(steps).for_each(|(var, step)| *var = *var - rate * *step);
    }
}

/// Divides the gradient of a matrix by the roots of its second moments, r · c / mean(r).
fn divide<F: Float>(grad: &[F], r: &[F], c: &[F], steps: &mut [F]) {
    let one = F::from_f64(1.0);
    let mean = F::from_f64(r.iter().map(|r| r.widened()).sum::<f64>() / r.len() as f64);
    let of_columns: Vec<F> = c.iter().map(|c| one / c.sqrt()).collect();
    for ((r, grad), steps) in r.iter().zip(grad.chunks_exact(c.len())).zip(steps.chunks_exact_mut(c.len())) {
        let of_row = one / (*r / mean).sqrt();
        for ((step, grad), of_column) in steps.iter_mut().zip(grad).zip(&of_columns) {
            *step = *grad * of_row * *of_column;
        }
    }
}

/// Returns the root of the mean of squares.
fn rms<F: Float>(values: &[F]) -> f64 {
    let mut squares = Lanes::default();
    for eight in values.chunks(Lanes::COUNT) {
        for (i, x) in eight.iter().enumerate() {
            squares.add_square(i, *x);
        }
    }
    (squares.sum() / values.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shaped::testing::{after_four_steps, assert_near};
    use crate::{Rule, RuleExt};

    #[test]
    fn results_are_those_of_keras() {
        // keras.optimizers.Adafactor of Keras 3.15 in f64, whose means are rounded to f32.
        let check = |dims: &[usize], expected: &[f64]| {
            assert_near(&after_four_steps(&Adafactor::default(), dims, 0.05), expected, 1e-7);
        };
        check(&[], &[-0.7587507235077172]);
        check(&[3], &[-0.7658072548820449, 0.11072538077690572, 0.8144010971906548]);
        check(
            &[2, 3],
            &[
                -0.7620560221590665,
                0.09981570516900506,
                0.8025147299300776,
                -0.20018197365557863,
                0.5517743987797415,
                -0.4092571389845178,
            ],
        );
        check(
            &[3, 2],
            &[
                -0.7595746674977129,
                0.12501785436966703,
                0.8057968492188522,
                -0.2264279568469298,
                0.5497759376086281,
                -0.40451100987154426,
            ],
        );
        check(
            &[2, 2, 3],
            &[
                -0.7636581146140816,
                0.09850919045326792,
                0.8047749272643908,
                -0.20227504426810217,
                0.5524123008367252,
                -0.40718348744862254,
                0.2954783414542441,
                -0.733842462018249,
                0.012196201041758004,
                0.8358644988843342,
                -0.20456373343276904,
                0.4927424750248654,
            ],
        );
    }

    #[test]
    fn results_with_other_hyperparameters_are_those_of_keras() {
        let rule = Adafactor {
            beta_2_decay: -0.5,
            epsilon_1: 1e-3,
            epsilon_2: 0.6,
            clip_threshold: 0.5,
            relative_step: true,
        };
        let expected = [-1.0917511320902331, 0.5789409291028789, 0.711754975290166];
        assert_near(&after_four_steps(&rule, &[3], 0.9), &expected, 1e-7);
        let expected = [
            -1.1142740344851845,
            0.47467749837033113,
            0.662196660938448,
            -0.08211802994143064,
            0.6421459942674371,
            -0.25860571250463626,
        ];
        assert_near(&after_four_steps(&rule, &[2, 3], 0.9), &expected, 1e-7);
    }

    #[test]
    fn results_without_the_largest_rate_are_those_of_the_formula() {
        // A few lines of NumPy.
        let rule = Adafactor { relative_step: false, ..Adafactor::default() };
        let expected = [
            -2.1862959093844645,
            1.2612467603567066,
            1.0085932235072212,
            -0.36073660273161845,
            0.2886300399959608,
            0.654419964793095,
        ];
        assert_near(&after_four_steps(&rule, &[2, 3], 0.9), &expected, 1e-12);
    }

    #[test]
    fn slots_are_those_of_rows_and_columns() {
        let dims = |variable: &[usize]| -> Vec<Vec<usize>> {
            Adafactor::default().slots().iter().map(|slot| slot.shape.dims(variable)).collect()
        };
        assert_eq!(dims(&[1000, 500]), [vec![1000], vec![500], vec![0]]);
        assert_eq!(dims(&[7]), [vec![0], vec![0], vec![7]]);
        assert_eq!(dims(&[]), [vec![0], vec![0], vec![]]);
    }

    /// Checks f32, whose smallest normal number is about 1e-38.
    #[test]
    fn rows_and_columns_without_a_gradient_do_not_change() {
        for finished in 0..3 {
            let (mut var, mut r, mut c) = ([1.0f32; 6], [0.0f32; 2], [0.0f32; 3]);
            let grad = [1e-3, 0.0, -2.0, 0.0, 0.0, 0.0];
            let slots = &mut [&mut r[..], &mut c[..], &mut []];
            Adafactor::default()
                .update_shaped(Step::after(finished, 0.1), &[2, 3], &mut var, &grad, slots)
                .unwrap();
            assert!(var.iter().chain(&r).chain(&c).all(|x| x.is_finite()), "{var:?} {r:?} {c:?}");
            assert_eq!((var[1], &var[3..]), (1.0, &[1.0; 3][..]));
            assert!(var[0] < 1.0 && var[2] > 1.0, "{var:?}");
        }
        let (mut var, mut r, mut c) = ([1.0f32; 6], [0.0f32; 2], [0.0f32; 3]);
        let slots = &mut [&mut r[..], &mut c[..], &mut []];
        Adafactor::default().update_shaped(Step::after(0, 0.1), &[2, 3], &mut var, &[0.0; 6], slots).unwrap();
        assert_eq!(var, [1.0; 6]);
    }

    #[test]
    fn variables_without_elements_are_fine() {
        let (rule, at, mut three) = (Adafactor::default(), Step::after(0, 0.1), [0.5f32; 3]);
        rule.update_shaped(at, &[0, 3], &mut [], &[], &mut [&mut [], &mut three, &mut []]).unwrap();
        rule.update_shaped(at, &[3, 0], &mut [], &[], &mut [&mut three, &mut [], &mut []]).unwrap();
        rule.update_shaped::<f32>(at, &[0], &mut [], &[], &mut [&mut [], &mut [], &mut []]).unwrap();
        assert_eq!(three, [0.5; 3]);
    }
}
