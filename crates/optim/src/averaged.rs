//! [`Averaged`]: a rule that also keeps the moving average of the weights.

// - INV-11 and INV-12 hold for it: it applies the rule in blocks, after its own checks. Tests:
//   `optim/tests/it/properties.rs`, `optim/src/averaged.rs`.

use crate::error::{Check, same_length};
use crate::rows::check_rows;
use crate::shaped::{check_rows_of, check_shaped};
use crate::{
    Float, InvalidHyperparameter, Operation, Program, Rule, RuleExt, RuleSpec, SlotSpec, Step, Unit,
    UpdateError,
};
use std::sync::Arc;

/// The number of elements of a block. The copies of old values stay in the L1 cache.
const BLOCK: usize = 1024;

/// The maximum number of slots with which a variable is updated in blocks, without allocating. With more slots, the
/// complete variable is updated at once.
const MAX_SLOTS: usize = 8;

/// A rule with an exponential moving average of the weights, which is kept in an additional slot.
///
/// After each step, average ← momentum · average + (1 − momentum) · var. The average is initially the initial value of
/// the variable. The slot [`SLOT`](Averaged::SLOT) is the difference average − var, which is 0 for variables and rows
/// that have never been updated.
///
/// The average of a row changes in the steps in which the rule changes the row. If the rule does not change rows
/// without a gradient, their averages do not change either.
///
/// ```
/// use distribute_optim::{Averaged, Rule, RuleExt, Sgd, Step};
/// use std::sync::Arc;
///
/// let rule = Averaged { rule: Arc::new(Sgd), momentum: 0.75 };
/// let (mut var, mut offset) = ([1.0f32], [0.0f32]);
/// rule.update(Step::after(0, 0.5), &mut var, &[1.0], &mut [&mut offset])?;
/// assert_eq!(var[0], 0.5);
/// assert_eq!(var[0] + offset[0], 0.75 * 1.0 + 0.25 * 0.5);
/// # Ok::<(), distribute_optim::UpdateError>(())
/// ```
#[doc(alias = "tf.train.ExponentialMovingAverage")]
#[derive(Clone, Debug)]
pub struct Averaged {
    /// The rule that updates the variable.
    pub rule: Arc<dyn Rule>,
    /// The fraction of the average that is kept in each step, in [0, 1).
    pub momentum: f64,
}

impl Averaged {
    /// The name of the slot with the difference between the average and the variable.
    pub const SLOT: &str = "ema_offset";

    /// Checks that each slot has the length of the variable. The rule checks the number of slots: checking it here
    /// would allocate a list of slots for each block.
    fn check_slots<F: Float>(&self, var: &[F], slots: &[&mut [F]]) -> Result<(), UpdateError> {
        let lengths = slots.iter().try_for_each(|slot| same_length("slot", var.len(), slot.len()));
        if slots.is_empty() {
            self.check_count(0)
        } else {
            lengths.map_err(|error| self.of_slots(slots.len(), error))
        }
    }

    fn check_count(&self, slots: usize) -> Result<(), UpdateError> {
        same_length("list of slots", self.rule.slots().len() + 1, slots)
    }

    /// Returns an error about the number of slots if it is wrong; otherwise returns `error`.
    fn of_slots(&self, slots: usize, error: UpdateError) -> UpdateError {
        self.check_count(slots).err().unwrap_or(error)
    }

    /// Returns an error if the rule needs a larger unit than `largest`.
    fn require_unit(&self, largest: Unit) -> Result<(), UpdateError> {
        let unit = self.rule.unit();
        if unit <= largest { Ok(()) } else { Err(UpdateError::NeedsShape { rule: self.name(), unit }) }
    }

    fn update_block<F: Float>(
        &self,
        at: Step,
        var: &mut [F],
        grad: &[F],
        slots: &mut [&mut [F]],
    ) -> Result<(), UpdateError> {
        let momentum = F::from_f64(self.momentum);
        let Some((offset, slots)) = slots.split_last_mut() else {
            return self.rule.update(at, var, grad, slots);
        };
        let mut scratch = [F::ZERO; BLOCK];
        let old = &mut scratch[..var.len()];
        old.copy_from_slice(var);
        self.rule.update(at, var, grad, slots)?;
        follow(offset, momentum, old, var);
        Ok(())
    }

    fn update_all<F: Float>(
        &self,
        at: Step,
        var: &mut [F],
        grad: &[F],
        slots: &mut [&mut [F]],
    ) -> Result<(), UpdateError> {
        self.require_unit(Unit::Element)?;
        same_length("gradient", var.len(), grad.len())?;
        self.check_slots(var, slots)?;
        if slots.len() > MAX_SLOTS {
            let Some((offset, slots)) = slots.split_last_mut() else { return Ok(()) };
            let old = var.to_vec();
            self.rule.update(at, var, grad, slots)?;
            follow(offset, F::from_f64(self.momentum), &old, var);
            return Ok(());
        }
        // Also checks the learning rate of an empty variable.
        let (mut start, count) = (0, slots.len());
        loop {
            let range = start..var.len().min(start + BLOCK);
            let mut of_block: [&mut [F]; MAX_SLOTS] = Default::default();
            for (block, slot) in of_block.iter_mut().zip(slots.iter_mut()) {
                *block = &mut slot[range.clone()];
            }
            self.update_block(at, &mut var[range.clone()], &grad[range.clone()], &mut of_block[..count])
                .map_err(|error| self.of_slots(count, error))?;
            start = range.end;
            if start >= var.len() {
                return Ok(());
            }
        }
    }

    fn update_complete<F: Float>(
        &self,
        at: Step,
        dims: &[usize],
        var: &mut [F],
        grad: &[F],
        slots: &mut [&mut [F]],
    ) -> Result<(), UpdateError> {
        if self.rule.unit() == Unit::Element {
            return self.update_all(at, var, grad, slots);
        }
        check_shaped(&self.slots(), dims, var, slots)?;
        let Some((offset, slots)) = slots.split_last_mut() else { return Ok(()) };
        let old = var.to_vec();
        self.rule.update_shaped(at, dims, var, grad, slots)?;
        follow(offset, F::from_f64(self.momentum), &old, var);
        Ok(())
    }

    fn update_some<F: Float>(
        &self,
        at: Step,
        var: &mut [F],
        row_len: usize,
        rows: &[usize],
        grads: &[F],
        slots: &mut [&mut [F]],
    ) -> Result<(), UpdateError> {
        self.require_unit(Unit::Row)?;
        check_rows(var.len(), row_len, rows, grads.len())?;
        check_rows_of(&self.slots(), var, row_len, slots)?;
        let momentum = F::from_f64(self.momentum);
        let Some((offset, slots)) = slots.split_last_mut() else {
            return self.rule.update_rows(at, var, row_len, rows, grads, slots);
        };
        if self.rule.moves_absent_rows() {
            let old = var.to_vec();
            self.rule.update_rows(at, var, row_len, rows, grads, slots)?;
            follow(offset, momentum, &old, var);
            return Ok(());
        }
        let of_row = |row: usize| row * row_len..row * row_len + row_len;
        let mut old = Vec::with_capacity(grads.len());
        rows.iter().filter(|_| row_len > 0).for_each(|row| old.extend_from_slice(&var[of_row(*row)]));
        self.rule.update_rows(at, var, row_len, rows, grads, slots)?;
        for (old, row) in old.chunks_exact(row_len.max(1)).zip(rows) {
            follow(&mut offset[of_row(*row)], momentum, old, &var[of_row(*row)]);
        }
        Ok(())
    }
}

/// Updates the differences average − value after the values have changed from `old` to `new`.
fn follow<F: Float>(offset: &mut [F], momentum: F, old: &[F], new: &[F]) {
    for (offset, (old, new)) in offset.iter_mut().zip(old.iter().zip(new)) {
        // In this order, small changes of large weights are not lost.
        *offset = momentum * (*offset + (*old - *new));
    }
}

impl Rule for Averaged {
    /// Returns the name of the rule that updates the variable.
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn slots(&self) -> Vec<SlotSpec> {
        let mut slots = self.rule.slots();
        slots.push(SlotSpec::zeros(Self::SLOT));
        slots
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        let check = Check(self.name());
        check.decay("ema_momentum", self.momentum)?;
        let is_first = self.rule.slots().iter().all(|slot| slot.name != Self::SLOT);
        check.that(is_first, "ema_momentum", self.momentum, "set once")?;
        self.rule.validate()
    }

    fn moves_absent_rows(&self) -> bool {
        self.rule.moves_absent_rows()
    }

    fn only_computes(&self) -> bool {
        self.rule.only_computes()
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::Averaged { ema_momentum: self.momentum, of: Box::new(self.rule.spec()?) })
    }

    fn program(&self, at: Step) -> Result<Option<Program>, UpdateError> {
        let Some(Program { mut operations, mut outputs }) = self.rule.program(at)? else { return Ok(None) };
        let Some(new) = outputs.first().copied() else { return Ok(None) };
        let mut push = |operation| {
            operations.push(operation);
            operations.len() - 1
        };
        // The variable and its gradient are inputs 0 and 1, and the rule has all other outputs as slots.
        let (old, offset) = (push(Operation::Input(0)), push(Operation::Input(outputs.len() + 1)));
        let change = push(Operation::Sub(old, new));
        let (sum, momentum) =
            (push(Operation::Add(offset, change)), push(Operation::Constant(self.momentum)));
        outputs.push(push(Operation::Mul(momentum, sum)));
        Ok(Some(Program { operations, outputs }))
    }

    fn update_f32(
        &self,
        at: Step,
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        self.update_all(at, var, grad, slots)
    }

    fn update_f64(
        &self,
        at: Step,
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        self.update_all(at, var, grad, slots)
    }

    fn unit(&self) -> Unit {
        self.rule.unit()
    }

    fn update_shaped_f32(
        &self,
        at: Step,
        dims: &[usize],
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        self.update_complete(at, dims, var, grad, slots)
    }

    fn update_shaped_f64(
        &self,
        at: Step,
        dims: &[usize],
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        self.update_complete(at, dims, var, grad, slots)
    }

    fn update_rows_f32(
        &self,
        at: Step,
        var: &mut [f32],
        row_len: usize,
        rows: &[usize],
        grads: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        self.update_some(at, var, row_len, rows, grads, slots)
    }

    fn update_rows_f64(
        &self,
        at: Step,
        var: &mut [f64],
        row_len: usize,
        rows: &[usize],
        grads: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        self.update_some(at, var, row_len, rows, grads, slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adam, Ftrl, Lamb, Sgd};

    fn averaged(rule: impl Rule, momentum: f64) -> Averaged {
        Averaged { rule: Arc::new(rule), momentum }
    }

    #[test]
    fn the_average_is_that_of_the_formula() {
        let rule = averaged(Sgd, 0.75);
        let (mut var, mut offset, mut average) = (vec![1.0f64; 3000], vec![0.0f64; 3000], vec![1.0f64; 3000]);
        for step in 0..5 {
            let grad: Vec<f64> = (0..3000).map(|i| ((i * 7 + step * 11) % 16) as f64 / 8. - 1.).collect();
            rule.update(Step::after(step as u64, 0.5), &mut var, &grad, &mut [&mut offset]).unwrap();
            for ((average, var), offset) in average.iter_mut().zip(&var).zip(&offset) {
                *average = 0.75 * *average + 0.25 * var;
                assert!((*average - (var + offset)).abs() < 1e-15);
            }
        }
    }

    #[test]
    fn a_rule_of_complete_variables_has_averages() {
        let (rule, lamb) = (averaged(Lamb::default(), 0.75), Lamb::default());
        let (mut var, mut average, dims) = (vec![1.0f64; 3000], vec![1.0f64; 3000], [3, 1000]);
        let mut expected = var.clone();
        let (mut of_rule, mut of_lamb) = (vec![vec![0.0f64; 3000]; 3], vec![vec![0.0f64; 3000]; 2]);
        for step in 0..3 {
            let grad: Vec<f64> = (0..3000).map(|i| ((i * 7 + step * 11) % 16) as f64 / 8. - 1.).collect();
            let at = Step::after(step as u64, 0.5);
            let mut slots: Vec<&mut [f64]> = of_rule.iter_mut().map(Vec::as_mut_slice).collect();
            assert!(matches!(
                rule.update(at, &mut var, &grad, &mut slots),
                Err(UpdateError::NeedsShape { rule: "lamb", unit: Unit::Variable })
            ));
            rule.update_shaped(at, &dims, &mut var, &grad, &mut slots).unwrap();
            let mut slots: Vec<&mut [f64]> = of_lamb.iter_mut().map(Vec::as_mut_slice).collect();
            lamb.update_shaped(at, &dims, &mut expected, &grad, &mut slots).unwrap();
            assert_eq!(var, expected);
            for ((average, var), offset) in average.iter_mut().zip(&var).zip(&of_rule[2]) {
                *average = 0.75 * *average + 0.25 * var;
                assert!((*average - (var + offset)).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn the_average_of_an_absent_row_moves_with_the_row() {
        let start = || ([4.0f64, 2.0], [1.0f64, 1.0]);
        let (mut var, mut offset) = start();
        averaged(Sgd, 0.5)
            .update_rows(Step::after(0, 1.), &mut var, 1, &[1], &[1.], &mut [&mut offset])
            .unwrap();
        // The average of row 1 was 3, and is now (3 + 1) / 2.
        assert_eq!((var, offset), ([4., 1.], [1., 1.]));
        let (mut var, mut offset) = start();
        let (mut m, mut v) = ([0.; 2], [0.; 2]);
        let slots = &mut [&mut m[..], &mut v[..], &mut offset[..]];
        averaged(Adam::default(), 0.5)
            .update_rows(Step::after(0, 1.), &mut var, 1, &[1], &[1.], slots)
            .unwrap();
        assert_eq!((var[0], offset[0]), (4., 0.5));
    }

    // INV-12
    #[test]
    fn lengths_must_match_and_nothing_changes() {
        let (mut var, mut offset, rule) = ([1.0f32; 2000], [0.5f32; 2000], averaged(Ftrl::default(), 0.9));
        let (mut accum, mut linear) = ([0.1f32; 2000], [0.0f32; 1999]);
        let slots = &mut [&mut accum[..], &mut linear[..], &mut offset[..]];
        let error = rule.update(Step::after(0, 0.1), &mut var, &[1.0; 2000], slots).unwrap_err();
        assert_eq!(error, UpdateError::LengthMismatch { what: "slot", expected: 2000, found: 1999 });
        let error = rule.update(Step::after(0, 0.1), &mut var, &[1.0; 2000], &mut slots[..2]).unwrap_err();
        assert_eq!(error, UpdateError::LengthMismatch { what: "list of slots", expected: 3, found: 2 });
        assert_eq!((var, offset), ([1.0; 2000], [0.5; 2000]));
        let rate = averaged(Sgd, 0.9).update::<f32>(Step::after(0, f64::NAN), &mut [], &[], &mut [&mut []]);
        assert!(matches!(rate, Err(UpdateError::LearningRate(_))));
    }

    #[test]
    fn an_average_of_an_average_and_a_wrong_momentum_are_refused() {
        let text = |rule: Averaged| rule.validate().unwrap_err().to_string();
        assert_eq!(text(averaged(Sgd, 1.)), "sgd: ema_momentum is 1, but must be at least 0 and less than 1");
        assert_eq!(text(averaged(averaged(Sgd, 0.5), 0.5)), "sgd: ema_momentum is 0.5, but must be set once");
        assert!(text(averaged(Adam { beta1: 2., ..Adam::default() }, 0.5)).starts_with("adam: beta1"));
        averaged(Adam::default(), 0.).validate().unwrap();
    }
}
