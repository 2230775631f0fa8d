//! [`Rule`]: the trait for code that applies update rules.

use std::fmt::Debug;

use crate::{Float, InvalidHyperparameter, Program, RuleSpec, SlotSpec, Unit, UpdateError};

/// The number of a step and its learning rate.
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
    /// Creates the step after `finished` steps, which is the first step if `finished` is 0. `finished` is TensorFlow's
    /// `iterations`, and is saved in checkpoints.
    #[doc(alias = "tf.keras.optimizers.Optimizer.iterations")]
    pub fn after(finished: u64, learning_rate: f64) -> Self {
        Step { number: finished.saturating_add(1), learning_rate }
    }

    /// Returns the number of this step. The first step has the number 1, so the bias correction never divides by 0.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Returns the learning rate of this step.
    pub fn learning_rate(self) -> f64 {
        self.learning_rate
    }

    /// Returns 1 − betaᵗ for step t: the total weight of all gradients in a running average that started at 0.
    pub fn bias_correction(self, beta: f64) -> f64 {
        // The power is 0 long before the exponent saturates.
        1.0 - beta.powi(i32::try_from(self.number).unwrap_or(i32::MAX))
    }
}

/// An update rule, which changes a variable and its slots by a gradient. This trait is for code that supports any
/// rule.
///
/// Every [`Formula`](crate::Formula) implements it. [`RuleExt`] has the same methods, generic over the element type.
///
/// In all methods, `slots` contains one slice for each of [`slots`](Rule::slots), in the same order. The length of each
/// slice is that of the slot's [shape](SlotSpec::shape); by default, it is the length of `var`. After an error nothing
/// has changed.
///
/// Rules that compute each element separately implement [`Formula`](crate::Formula). Other rules return a larger
/// [`unit`](Rule::unit), and implement [`update_shaped_f32`](Rule::update_shaped_f32) and
/// [`update_shaped_f64`](Rule::update_shaped_f64). Such rules must [only compute](Rule::only_computes) to be used by an
/// optimizer.
#[doc(alias = "tf.keras.optimizers.Optimizer")]
#[doc(alias = "Optimizer")]
pub trait Rule: Debug + Send + Sync + 'static {
    /// Returns the name of the rule in errors and checkpoints, such as `"adam"`.
    fn name(&self) -> &'static str;

    /// Returns the slots that the rule keeps for every variable.
    fn slots(&self) -> Vec<SlotSpec>;

    /// Returns the part of a variable that the rule needs at once. It is an element by default.
    ///
    /// Rules with a larger unit are applied by [`update_shaped`](RuleExt::update_shaped). If the unit is a row, the
    /// shape of each slot is [`Variable`](crate::SlotShape::Variable) or [`Rows`](crate::SlotShape::Rows).
    fn unit(&self) -> Unit {
        Unit::Element
    }

    /// Checks the hyper-parameters. Updates do not check them, so call this once for a rule that a user has created.
    ///
    /// # Errors
    /// - [`InvalidHyperparameter`]: a hyper-parameter is out of range.
    fn validate(&self) -> Result<(), InvalidHyperparameter>;

    /// Returns whether an update by row also changes rows without a gradient.
    ///
    /// If so, call `update_rows` in every step for every shard of the table, even if there are no rows with a
    /// gradient.
    fn moves_absent_rows(&self) -> bool;

    /// Returns whether updates do nothing but compute with their arguments; see
    /// [`Formula::only_computes`](crate::Formula::only_computes).
    fn only_computes(&self) -> bool {
        false
    }

    /// Returns the rule as data that can be sent to a server; see [`Formula::spec`](crate::Formula::spec).
    fn spec(&self) -> Option<RuleSpec> {
        None
    }

    /// Returns a step of the rule as operations on tensors, for devices whose memory cannot be accessed as slices.
    ///
    /// Returns `None` if the operations depend on the values of elements, or if an exponent is not constant. The
    /// default implementation always returns `None`.
    ///
    /// # Errors
    /// - [`LearningRate`](UpdateError::LearningRate): see [`RuleExt::update`].
    fn program(&self, _at: Step) -> Result<Option<Program>, UpdateError> {
        Ok(None)
    }

    /// Applies one step to `f32`; see [`RuleExt::update`].
    fn update_f32(
        &self,
        at: Step,
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError>;

    /// Applies one step to `f64`; see [`RuleExt::update`].
    fn update_f64(
        &self,
        at: Step,
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError>;

    /// Applies one step to `f32` with a shape; see [`RuleExt::update_shaped`]. By default, the shape is ignored.
    fn update_shaped_f32(
        &self,
        at: Step,
        _dims: &[usize],
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        self.update_f32(at, var, grad, slots)
    }

    /// Applies one step to `f64` with a shape; see [`RuleExt::update_shaped`]. By default, the shape is ignored.
    fn update_shaped_f64(
        &self,
        at: Step,
        _dims: &[usize],
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        self.update_f64(at, var, grad, slots)
    }

    /// Applies one step to rows of `f32`; see [`RuleExt::update_rows`].
    fn update_rows_f32(
        &self,
        at: Step,
        var: &mut [f32],
        row_len: usize,
        rows: &[usize],
        grads: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError>;

    /// Applies one step to rows of `f64`; see [`RuleExt::update_rows`].
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

/// The methods of [`Rule`], generic over the element type. They are also available for `dyn Rule`.
pub trait RuleExt: Rule {
    /// Applies one step: changes all elements of `var` and `slots` by the gradient `grad`, which has the length of
    /// `var`.
    ///
    /// `var` may be any range of a variable, because elements do not affect each other. Rules with a larger
    /// [unit](Rule::unit) need [`update_shaped`](RuleExt::update_shaped).
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`LengthMismatch`](UpdateError::LengthMismatch): the length of a slice differs from that of `var`, or the
    ///   number of slots differs from that of [`Rule::slots`].
    /// - [`LearningRate`](UpdateError::LearningRate): the rule does not support the learning rate, for example
    ///   because it is not finite.
    /// - [`NeedsShape`](UpdateError::NeedsShape): the rule needs complete rows or variables.
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

    /// Applies one step to a variable of shape `dims`, or to a part of it that consists of complete [units](Rule::unit)
    /// of the rule. In the latter case, `dims` is the shape of the part.
    ///
    /// ```
    /// use distribute_optim::{RowAdagrad, RuleExt, Step};
    ///
    /// // Two rows of two. Each has one accumulator: the mean of its squared gradients.
    /// let (mut var, mut accum) = ([1.0f32; 4], [0.0f32; 2]);
    /// let grad = [3.0, 3.0, 0.0, 0.0];
    /// RowAdagrad::default().update_shaped(Step::after(0, 0.5), &[2, 2], &mut var, &grad, &mut [&mut accum])?;
    /// assert_eq!((var, accum), ([0.5, 0.5, 1.0, 1.0], [9.0, 0.0]));
    /// # Ok::<(), distribute_optim::UpdateError>(())
    /// ```
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`LengthMismatch`](UpdateError::LengthMismatch): the length of a slice is not that of its shape, or the
    ///   number of slots differs from that of [`Rule::slots`].
    /// - [`LearningRate`](UpdateError::LearningRate): the rule does not support the learning rate.
    fn update_shaped<F: Float>(
        &self,
        at: Step,
        dims: &[usize],
        var: &mut [F],
        grad: &[F],
        slots: &mut [&mut [F]],
    ) -> Result<(), UpdateError> {
        F::by_type(
            (var, grad, slots),
            |(var, grad, slots)| self.update_shaped_f32(at, dims, var, grad, slots),
            |(var, grad, slots)| self.update_shaped_f64(at, dims, var, grad, slots),
        )
    }

    /// Applies one step with a gradient by row: row `rows[i]` of the table `var` has the gradient `grads[i *
    /// row_len..][..row_len]`.
    ///
    /// `var` contains complete rows of a table or a shard, and `rows` are relative to its first row. They must be
    /// strictly ascending, as returned by [`merge_rows`](crate::merge_rows). Rows without a gradient do not change,
    /// neither in `var` nor in the slots, unless the rule [changes absent rows](Rule::moves_absent_rows). In that case,
    /// they change as if the gradient were 0. Rules that need the complete variable do not support gradients by row:
    /// pass a dense gradient to [`update_shaped`](RuleExt::update_shaped).
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`RowOutOfRange`](UpdateError::RowOutOfRange): a row is outside the table.
    /// - [`RowsOutOfOrder`](UpdateError::RowsOutOfOrder): the rows are not strictly ascending.
    /// - [`LengthMismatch`](UpdateError::LengthMismatch): `var` does not consist of complete rows, `grads` does not
    ///   contain `row_len` elements for each row, or the slots do not match as in [`update`](RuleExt::update).
    /// - [`LearningRate`](UpdateError::LearningRate): as in [`update`](RuleExt::update).
    /// - [`NeedsShape`](UpdateError::NeedsShape): the rule needs the complete variable.
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
