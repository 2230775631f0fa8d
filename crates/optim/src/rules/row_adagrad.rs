//! Adagrad with one accumulator for each row.

use crate::error::Check;
use crate::shaped::{Shaped, shaped_rule, squares};
use crate::{Float, InvalidHyperparameter, RowAdagrad, RuleSpec, SlotShape, SlotSpec, Step, Unit};

shaped_rule!(RowAdagrad);

impl Shaped for RowAdagrad {
    const UNIT: Unit = Unit::Row;
    const EVERY_ROW: bool = false;

    fn label(&self) -> &'static str {
        "row_adagrad"
    }

    fn layout(&self) -> Vec<SlotSpec> {
        vec![SlotSpec::new("accum", self.initial_accumulator_value).with_shape(SlotShape::Rows)]
    }

    fn check(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.label());
        check.not_negative("initial_accumulator_value", self.initial_accumulator_value)?;
        check.not_negative("epsilon", self.epsilon)?;
        // A row without any gradient would be 0 / 0.
        let divisible = self.initial_accumulator_value > 0.0 || self.epsilon > 0.0;
        check.that(divisible, "epsilon", self.epsilon, "greater than 0 if initial_accumulator_value is 0")
    }

    fn spec(&self) -> RuleSpec {
        RuleSpec::RowAdagrad(*self)
    }

    fn apply<F: Float>(&self, at: Step, dims: &[usize], var: &mut [F], grad: &[F], slots: &mut [&mut [F]]) {
        let (row_len, update) = (dims.iter().skip(1).product(), self.of_row(at));
        let [accum] = slots else { return };
        let rows = var.chunks_exact_mut(row_len).zip(grad.chunks_exact(row_len));
        rows.zip(accum.iter_mut()).for_each(|((var, grad), accum)| update(var, grad, accum));
    }

    fn apply_rows<F: Float>(
        &self,
        at: Step,
        var: &mut [F],
        row_len: usize,
        (rows, grads): (&[usize], &[F]),
        slots: &mut [&mut [F]],
    ) {
        let update = self.of_row(at);
        let [accum] = slots else { return };
        for (row, grad) in rows.iter().zip(grads.chunks_exact(row_len)) {
            update(&mut var[row * row_len..][..row_len], grad, &mut accum[*row]);
        }
    }
}

impl RowAdagrad {
    /// Returns a function that updates a row. Its arguments are the elements of the row, their gradient and the
    /// accumulator.
    fn of_row<F: Float>(&self, at: Step) -> impl Fn(&mut [F], &[F], &mut F) {
        let [lr, epsilon] = [at.learning_rate(), self.epsilon].map(F::from_f64);
        move |var, grad, accum| {
            *accum += squares(grad) / F::from_f64(grad.len() as f64);
            let rate = lr / (accum.sqrt() + epsilon);
            var.iter_mut().zip(grad).for_each(|(var, grad)| *var = *var - rate * *grad);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rule, RuleExt, UpdateError};

    #[test]
    fn by_hand() {
        let rule = RowAdagrad { initial_accumulator_value: 1.0, epsilon: 0.5 };
        assert_eq!(rule.slots(), [SlotSpec::new("accum", 1.0).with_shape(SlotShape::Rows)]);
        let (mut var, mut accum) = ([1.0f32, 1.0, 2.0, 2.0], [1.0f32, 1.0]);
        // The second row: 1 + (1 + 5) / 2 = 4, and a rate of 0.5 / (2 + 0.5).
        let grad = [0.0, 0.0, 1.0, -(5.0f32.sqrt())];
        rule.update_shaped(Step::after(0, 0.5), &[2, 2], &mut var, &grad, &mut [&mut accum]).unwrap();
        assert_eq!((accum[0], var[..2].to_vec()), (1.0, vec![1.0; 2]));
        assert!((accum[1] - 4.0).abs() < 1e-6 && (var[2] - 1.8).abs() < 1e-6, "{accum:?} {var:?}");
        assert!((var[3] - (2.0 + 0.2 * 5.0f32.sqrt())).abs() < 1e-6, "{var:?}");
        let before = var;
        rule.update_rows(Step::after(1, 0.5), &mut var, 2, &[0], &[2.0, 4.0], &mut [&mut accum]).unwrap();
        // 1 + (4 + 16) / 2 = 11.
        assert_eq!((accum[0], var[2..].to_vec()), (11.0, before[2..].to_vec()));
        assert!((var[0] - (1.0 - 1.0 / (11.0f32.sqrt() + 0.5))).abs() < 1e-6, "{var:?}");
    }

    /// The elements of a vector are rows, and so is a scalar.
    #[test]
    fn vectors_and_scalars_are_updated_like_by_adagrad() {
        let (rule, adagrad) =
            (RowAdagrad { initial_accumulator_value: 0.1, epsilon: 1e-7 }, crate::Adagrad::default());
        for dims in [&[][..], &[1], &[3]] {
            let n: usize = dims.iter().product();
            let (mut var, mut accum) = (vec![1.0f64; n], vec![0.1f64; n]);
            let (mut expected, mut all) = (var.clone(), accum.clone());
            for step in 0..3 {
                let grad: Vec<f64> = (0..n).map(|i| (i + step) as f64 - 1.3).collect();
                let at = Step::after(step as u64, 0.1);
                rule.update_shaped(at, dims, &mut var, &grad, &mut [&mut accum]).unwrap();
                adagrad.update(at, &mut expected, &grad, &mut [&mut all]).unwrap();
            }
            assert!(var.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12), "{var:?} {expected:?}");
            assert_eq!(accum, all);
        }
    }

    // INV-12
    #[test]
    fn lengths_must_match_and_nothing_changes() {
        let (mut var, mut accum, rule, at) =
            ([1.0f32; 6], [2.0f32; 3], RowAdagrad::default(), Step::after(0, 0.1));
        let error = rule.update(at, &mut var, &[1.0; 6], &mut [&mut accum]).unwrap_err();
        assert_eq!(error, UpdateError::NeedsShape { rule: "row_adagrad", unit: Unit::Row });
        assert_eq!(
            error.to_string(),
            "rule row_adagrad needs complete rows: apply it to them by update_shaped"
        );
        let mut shaped = |dims: &[usize], grad: &[f32], slots: &mut [&mut [f32]]| {
            rule.update_shaped(at, dims, &mut var, grad, slots).unwrap_err()
        };
        let what = "variable of this shape";
        let error = shaped(&[3, 3], &[1.0; 6], &mut [&mut accum]);
        assert_eq!(error, UpdateError::LengthMismatch { what, expected: 9, found: 6 });
        let error = shaped(&[2, 3], &[1.0; 6], &mut [&mut accum]);
        assert_eq!(error, UpdateError::LengthMismatch { what: "slot", expected: 2, found: 3 });
        let error = shaped(&[3, 2], &[1.0; 5], &mut [&mut accum]);
        assert_eq!(error, UpdateError::LengthMismatch { what: "gradient", expected: 6, found: 5 });
        let error = shaped(&[3, 2], &[1.0; 6], &mut []);
        assert_eq!(error, UpdateError::LengthMismatch { what: "list of slots", expected: 1, found: 0 });
        let error = rule.update_rows(at, &mut var, 3, &[1], &[1.0; 3], &mut [&mut accum]).unwrap_err();
        assert_eq!(error, UpdateError::LengthMismatch { what: "slot", expected: 2, found: 3 });
        let nan = rule.update_shaped::<f32>(Step::after(0, f64::NAN), &[0, 2], &mut [], &[], &mut [&mut []]);
        assert!(matches!(nan, Err(UpdateError::LearningRate(_))));
        assert_eq!((var, accum), ([1.0; 6], [2.0; 3]));
    }

    #[test]
    fn empty_rows_and_tables_are_fine() {
        let (rule, at, mut accum) = (RowAdagrad::default(), Step::after(0, 0.1), [0.5f32; 4]);
        rule.update_shaped(at, &[4, 0], &mut [], &[], &mut [&mut accum]).unwrap();
        rule.update_rows(at, &mut [], 0, &[1, 3], &[], &mut [&mut accum]).unwrap();
        assert_eq!(accum, [0.5; 4]);
        rule.update_rows::<f32>(at, &mut [], 3, &[], &[], &mut [&mut []]).unwrap();
        rule.update_shaped::<f32>(at, &[0, 3], &mut [], &[], &mut [&mut []]).unwrap();
    }
}
