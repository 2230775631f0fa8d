//! [`Rule`]: an update rule, as callers use it.

use std::fmt::Debug;

use crate::{Float, InvalidHyperparameter, Program, RuleSpec, UpdateError};

/// The position of an update: the number of steps before it, and its learning rate.
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
    /// Creates the step after `finished` others, which is 0 for the first. TensorFlow counts the same number
    /// in `iterations`, and checkpoints contain it.
    #[doc(alias = "tf.keras.optimizers.Optimizer.iterations")]
    pub fn after(finished: u64, learning_rate: f64) -> Self {
        Step { number: finished.saturating_add(1), learning_rate }
    }

    /// Returns the number of this step. The first is 1, so that bias correction never divides by 0.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Returns the learning rate.
    pub fn learning_rate(self) -> f64 {
        self.learning_rate
    }

    /// Returns 1 − betaᵗ, the weight of all gradients so far in a running average that started at 0.
    pub fn bias_correction(self, beta: f64) -> f64 {
        // The power is 0 long before the exponent saturates.
        1.0 - beta.powi(i32::try_from(self.number).unwrap_or(i32::MAX))
    }
}

/// A slot: a state with the shape of the variable that a rule keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotSpec {
    /// The name, unique within the rule, such as `"m"`.
    pub name: &'static str,
    /// The value of all elements before the first step.
    pub initial: f64,
}

impl SlotSpec {
    /// Creates a slot that starts at 0.
    pub const fn zeros(name: &'static str) -> Self {
        SlotSpec { name, initial: 0.0 }
    }
}

/// An update of a variable and its slots by a gradient, for callers that support any rule.
///
/// Every [`Formula`](crate::Formula) implements it. [`RuleExt`] adds the same methods, generic over the element.
///
/// `slots` contains one slice for each of [`slots`](Rule::slots), in that order and with the length of `var`.
/// After an error nothing has changed.
#[doc(alias = "tf.keras.optimizers.Optimizer")]
#[doc(alias = "Optimizer")]
pub trait Rule: Debug + Send + Sync + 'static {
    /// Returns the rule's name for errors and checkpoints, such as `"adam"`.
    fn name(&self) -> &'static str;

    /// Returns the slots that the rule keeps for every variable.
    fn slots(&self) -> Vec<SlotSpec>;

    /// Checks the hyper-parameters. Updates do not, so call this once for a rule from a user.
    fn validate(&self) -> Result<(), InvalidHyperparameter>;

    /// Whether an update by row also changes rows without a gradient.
    ///
    /// If so, call `update_rows` for every shard of the table in every step, even without rows.
    fn moves_absent_rows(&self) -> bool;

    /// Whether updates only compute with their arguments: see
    /// [`Formula::only_computes`](crate::Formula::only_computes).
    fn only_computes(&self) -> bool {
        false
    }

    /// Returns the rule as data, to be sent to a server: see [`Formula::spec`](crate::Formula::spec).
    fn spec(&self) -> Option<RuleSpec> {
        None
    }

    /// Returns the rule's step as operations on tensors, for devices whose memory is not accessible as slices.
    ///
    /// Returns `None` if the rule's operations depend on the values of elements.
    ///
    /// # Errors
    /// - [`LearningRate`](UpdateError::LearningRate): as for [`RuleExt::update`].
    fn program(&self, _at: Step) -> Result<Option<Program>, UpdateError> {
        Ok(None)
    }

    /// Makes one step on `f32`: see [`RuleExt::update`].
    fn update_f32(
        &self,
        at: Step,
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError>;

    /// Makes one step on `f64`: see [`RuleExt::update`].
    fn update_f64(
        &self,
        at: Step,
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError>;

    /// Makes one step on rows of `f32`: see [`RuleExt::update_rows`].
    fn update_rows_f32(
        &self,
        at: Step,
        var: &mut [f32],
        row_len: usize,
        rows: &[usize],
        grads: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError>;

    /// Makes one step on rows of `f64`: see [`RuleExt::update_rows`].
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

/// The methods of [`Rule`], generic over the element; also implemented for `dyn Rule`.
pub trait RuleExt: Rule {
    /// Makes one step: changes all of `var` and `slots` by the gradient `grad`, which has the length of `var`.
    ///
    /// `var` may be any range of a variable: the result of an element does not depend on other elements.
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`LengthMismatch`](UpdateError::LengthMismatch): a slice has another length than `var`, or the number
    ///   of slots differs from [`Rule::slots`].
    /// - [`LearningRate`](UpdateError::LearningRate): the rule does not support the learning rate, for example
    ///   one that is not finite.
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

    /// Makes one step by a sparse gradient: row `rows[i]` of the table `var` has the gradient
    /// `grads[i * row_len..][..row_len]`.
    ///
    /// `var` contains complete rows of a table or a shard, and `rows` are counted from its first row. They
    /// ascend strictly, like the result of [`merge_rows`](crate::merge_rows). Rows of `var` and the slots
    /// without a gradient do not change, unless the rule [moves absent rows](Rule::moves_absent_rows). Such a
    /// rule changes them as for a gradient of 0.
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`RowOutOfRange`](UpdateError::RowOutOfRange): a row is not in the table.
    /// - [`RowsOutOfOrder`](UpdateError::RowsOutOfOrder): the rows do not ascend strictly.
    /// - The errors of [`update`](RuleExt::update).
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
