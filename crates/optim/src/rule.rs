//! [`Rule`]: an update rule as its callers see it.

use std::fmt::Debug;

use crate::{Float, InvalidHyperparameter, Program, RuleSpec, UpdateError};

/// When an update happens: how many steps came before it, and the learning rate of this one.
///
/// ```
/// use distribute_optim::Step;
/// assert_eq!(Step::after(0, 0.1).number(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    number: u64,
    learning_rate: f64,
}

impl Step {
    /// The step after `finished` others, which is 0 for the first. It is what TensorFlow counts in `iterations`
    /// and what a checkpoint holds.
    #[doc(alias = "tf.keras.optimizers.Optimizer.iterations")]
    pub fn after(finished: u64, learning_rate: f64) -> Self {
        Step { number: finished.saturating_add(1), learning_rate }
    }

    /// The number of this step. The first is 1, so that bias correction never divides by 0.
    pub fn number(self) -> u64 {
        self.number
    }

    /// The learning rate.
    pub fn learning_rate(self) -> f64 {
        self.learning_rate
    }

    /// 1 − betaᵗ: the weight of all gradients so far in a running average that started at 0.
    pub fn bias_correction(self, beta: f64) -> f64 {
        // Long before the exponent saturates, the power is 0.
        1.0 - beta.powi(i32::try_from(self.number).unwrap_or(i32::MAX))
    }
}

/// A slot: a state of the same shape as the variable that a rule keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotSpec {
    /// Its name, unique in its rule: `"m"`.
    pub name: &'static str,
    /// The value of all its elements before the first step.
    pub initial: f64,
}

impl SlotSpec {
    /// A slot that starts at 0.
    pub const fn zeros(name: &'static str) -> Self {
        SlotSpec { name, initial: 0.0 }
    }
}

/// How a variable and its slots change for a gradient, for callers that hold any rule.
///
/// It comes with every [`Formula`](crate::Formula); [`RuleExt`] adds the same calls generic over the element.
///
/// `slots` hold one slice for each of [`slots`](Rule::slots), in that order, as long as `var`. On an error nothing
/// was changed.
#[doc(alias = "tf.keras.optimizers.Optimizer")]
#[doc(alias = "Optimizer")]
pub trait Rule: Debug + Send + Sync + 'static {
    /// The rule's name, for errors and checkpoints: `"adam"`.
    fn name(&self) -> &'static str;

    /// The slots that the rule keeps for every variable.
    fn slots(&self) -> Vec<SlotSpec>;

    /// Checks the hyper-parameters. Updates don't, so call it once where a rule comes from a user.
    fn validate(&self) -> Result<(), InvalidHyperparameter>;

    /// Whether an update by row moves rows without a gradient too.
    ///
    /// Whoever owns a shard of such a table must call `update_rows` in every step, with no rows if none came.
    fn moves_absent_rows(&self) -> bool;

    /// Whether updates do nothing but arithmetic on their arguments: see [`Formula::only_computes`](crate::Formula::only_computes).
    fn only_computes(&self) -> bool {
        false
    }

    /// The rule as data, to be sent to a server: see [`Formula::spec`](crate::Formula::spec).
    fn spec(&self) -> Option<RuleSpec> {
        None
    }

    /// What the rule does in a step, as operations on whole tensors: for devices whose memory no slice reaches. `None` where it
    /// cannot be written down, since it looks at elements.
    ///
    /// # Errors
    /// [`LearningRate`](UpdateError::LearningRate), as [`RuleExt::update`].
    fn program(&self, _at: Step) -> Result<Option<Program>, UpdateError> {
        Ok(None)
    }

    /// One step on `f32`: see [`RuleExt::update`].
    fn update_f32(
        &self,
        at: Step,
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError>;

    /// One step on `f64`: see [`RuleExt::update`].
    fn update_f64(
        &self,
        at: Step,
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError>;

    /// One step on rows of `f32`: see [`RuleExt::update_rows`].
    fn update_rows_f32(
        &self,
        at: Step,
        var: &mut [f32],
        row_len: usize,
        rows: &[usize],
        grads: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError>;

    /// One step on rows of `f64`: see [`RuleExt::update_rows`].
    fn update_rows_f64(
        &self,
        at: Step,
        var: &mut [f64],
        row_len: usize,
        rows: &[usize],
        grads: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError>;
}

/// The calls of [`Rule`], generic over the element, for `dyn Rule` too.
pub trait RuleExt: Rule {
    /// One step: changes all of `var` and `slots` for the gradient `grad`, which is as long as `var`.
    ///
    /// `var` may be any range of a variable: an element's result depends on nothing but itself, to the bit.
    ///
    /// # Errors
    /// [`LengthMismatch`](UpdateError::LengthMismatch) if a slice has another length than `var`, or the slots
    /// another number than [`Rule::slots`]; [`LearningRate`](UpdateError::LearningRate) if the learning rate isn't
    /// finite, or is one that the rule can't take. Nothing was changed then.
    fn update<F: Float>(
        &self,
        at: Step,
        var: &mut [F],
        grad: &[F],
        slots: &mut [&mut [F]],
    ) -> Result<(), UpdateError> {
        F::by_type(
            (var, grad, slots),
            |(var, grad, slots)| self.update_f32(at, var, grad, slots),
            |(var, grad, slots)| self.update_f64(at, var, grad, slots),
        )
    }

    /// One step by a sparse gradient: row `rows[i]` of the table `var` has the gradient
    /// `grads[i * row_len..][..row_len]`.
    ///
    /// `var` holds whole rows, all of a table or a shard's, and `rows` count from its first; they ascend and are
    /// unique, as [`merge_rows`](crate::merge_rows) gives them. Rows of `var` and the slots without a gradient don't
    /// change, unless the rule [moves absent rows](Rule::moves_absent_rows): then they do as for a gradient of 0.
    ///
    /// # Errors
    /// As [`update`](RuleExt::update), and [`RowOutOfRange`](UpdateError::RowOutOfRange),
    /// [`RowsOutOfOrder`](UpdateError::RowsOutOfOrder). Nothing was changed then.
    fn update_rows<F: Float>(
        &self,
        at: Step,
        var: &mut [F],
        row_len: usize,
        rows: &[usize],
        grads: &[F],
        slots: &mut [&mut [F]],
    ) -> Result<(), UpdateError> {
        F::by_type(
            (var, grads, slots),
            |(var, grads, slots)| self.update_rows_f32(at, var, row_len, rows, grads, slots),
            |(var, grads, slots)| self.update_rows_f64(at, var, row_len, rows, grads, slots),
        )
    }
}

impl<R: Rule + ?Sized> RuleExt for R {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_counts_from_one_and_saturates() {
        assert_eq!(Step::after(0, 0.1).number(), 1);
        assert_eq!(Step::after(u64::MAX, 0.1).number(), u64::MAX);
        assert_eq!(Step::after(1, 0.1).bias_correction(0.5), 0.75);
        assert_eq!(Step::after(u64::MAX, 0.1).bias_correction(0.999), 1.0);
    }
}
