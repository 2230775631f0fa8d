//! [`Formula`]: the trait for code that defines update rules. Every type that implements it is a [`Rule`].

// - INV-12: enforced here. Tests: `optim/src/formula.rs`, `ps-tables/tests/it/refusals.rs`.

use std::fmt::Debug;

use crate::error::{Check, same_length};
use crate::rows::{check_rows, every_span, row_spans};
use crate::sweep::{Slots, Span};
use crate::traced::{Traced, trace};
use crate::{Float, InvalidHyperparameter, Program, Rule, RuleSpec, SlotSpec, Step, UpdateError};

/// An update rule, defined by its formula for one element. The formula is generic over the float type.
///
/// Every type that implements `Formula` is a [`Rule`]:
///
/// ```
/// use distribute_optim::{Float, Formula, RuleExt, SlotSpec, Step};
///
/// /// Moves by the sign of a running average.
/// #[derive(Debug)]
/// struct SignMomentum { beta: f64 }
///
/// impl Formula for SignMomentum {
///     type Slots<T: Copy> = [T; 1];
///
///     fn label(&self) -> &'static str {
///         "sign_momentum"
///     }
///
///     fn layout(&self) -> [SlotSpec; 1] {
///         [SlotSpec::zeros("m")]
///     }
///
///     fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
///         let [beta, rest, rate] = [self.beta, 1.0 - self.beta, at.learning_rate()].map(F::from_f64);
///         move |var, grad, [m]| {
///             let m = beta * m + rest * grad;
///             (var - rate.copysign(m), [m])
///         }
///     }
/// }
///
/// let (mut var, mut m) = ([1.0f32, 2.0], [0.0f32; 2]);
/// SignMomentum { beta: 0.5 }.update(Step::after(0, 0.5), &mut var, &[3.0, -4.0], &mut [&mut m])?;
/// assert_eq!((var, m), ([0.5, 2.5], [1.5, -2.0]));
/// # Ok::<(), distribute_optim::UpdateError>(())
/// ```
pub trait Formula: Debug + Send + Sync + 'static {
    /// An array with one `T` for each slot, such as `[T; 2]` for two slots. There can be zero to three slots.
    type Slots<T: Copy>: Slots<T>;

    /// Returns the name of the rule, for [`Rule::name`].
    fn label(&self) -> &'static str;

    /// Returns the slots of the rule, for [`Rule::slots`].
    fn layout(&self) -> Self::Slots<SlotSpec>;

    /// Checks the hyper-parameters, for [`Rule::validate`]. By default, all are valid.
    fn check(&self) -> Result<(), InvalidHyperparameter> {
        Ok(())
    }

    /// Checks that the rule supports a learning rate. By default, it must be finite.
    fn check_learning_rate(&self, learning_rate: f64) -> Result<(), InvalidHyperparameter> {
        Check(self.label()).that(learning_rate.is_finite(), "learning_rate", learning_rate, "finite")
    }

    /// Returns whether an update by row also changes rows without a gradient, for [`Rule::moves_absent_rows`]. It is
    /// `false` by default.
    fn every_row(&self) -> bool {
        false
    }

    /// Returns whether the kernel does nothing but compute with its arguments. It is `false` by default.
    ///
    /// Such a kernel must not block, take locks, read variables or panic. The rule is then applied to variables in
    /// place, in the same pass that reduces their gradients. Any other rule is applied to copies, which takes more
    /// time. If its kernel hangs, the other replicas wait only until the deadline; if its kernel fails, nothing has
    /// changed.
    fn only_computes(&self) -> bool {
        false
    }

    /// Returns the rule as data that can be sent to a server, if it is a rule of this crate. It is `None` by
    /// default, because code cannot be sent.
    fn spec(&self) -> Option<RuleSpec> {
        None
    }

    /// Returns the formula for one element: (variable, gradient, slots) → (variable, slots).
    ///
    /// This is called once per update, and the returned closure once per element. Compute coefficients outside the
    /// closure, in `f64`.
    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, Self::Slots<F>) -> (F, Self::Slots<F>);
}

impl<R: Formula> Rule for R {
    fn name(&self) -> &'static str {
        self.label()
    }

    fn slots(&self) -> Vec<SlotSpec> {
        self.layout().into_vec()
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        self.check()
    }

    fn moves_absent_rows(&self) -> bool {
        self.every_row()
    }

    fn only_computes(&self) -> bool {
        Formula::only_computes(self)
    }

    fn spec(&self) -> Option<RuleSpec> {
        Formula::spec(self)
    }

    fn program(&self, at: Step) -> Result<Option<Program>, UpdateError> {
        self.check_learning_rate(at.learning_rate())?;
        Ok(trace(|var, grad, slots: R::Slots<Traced>| self.kernel::<Traced>(at)(var, grad, slots)))
    }

    fn update_f32(
        &self,
        at: Step,
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        update(self, at, var, grad, slots)
    }

    fn update_f64(
        &self,
        at: Step,
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        update(self, at, var, grad, slots)
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
        update_rows(self, at, var, row_len, rows, grads, slots)
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
        update_rows(self, at, var, row_len, rows, grads, slots)
    }
}

fn update<R: Formula, F: Float>(
    rule: &R,
    at: Step,
    var: &mut [F],
    grad: &[F],
    slots: &mut [&mut [F]],
) -> Result<(), UpdateError> {
    rule.check_learning_rate(at.learning_rate())?;
    same_length("gradient", var.len(), grad.len())?;
    check_slots::<R, F>(var, slots)?;
    let whole = Span { at: 0..var.len(), grad: Some(grad) };
    R::Slots::<F>::sweep(var, slots, std::iter::once(whole), rule.kernel::<F>(at));
    Ok(())
}

fn update_rows<R: Formula, F: Float>(
    rule: &R,
    at: Step,
    var: &mut [F],
    row_len: usize,
    rows: &[usize],
    grads: &[F],
    slots: &mut [&mut [F]],
) -> Result<(), UpdateError> {
    rule.check_learning_rate(at.learning_rate())?;
    check_slots::<R, F>(var, slots)?;
    check_rows(var.len(), row_len, rows, grads.len())?;
    let (len, kernel) = (var.len(), rule.kernel::<F>(at));
    if rule.every_row() {
        R::Slots::<F>::sweep(var, slots, every_span(len, row_len, rows, grads), kernel);
    } else {
        R::Slots::<F>::sweep(var, slots, row_spans(row_len, rows, grads), kernel);
    }
    Ok(())
}

fn check_slots<R: Formula, F: Float>(var: &[F], slots: &[&mut [F]]) -> Result<(), UpdateError> {
    same_length("list of slots", R::Slots::<F>::COUNT, slots.len())?;
    slots.iter().try_for_each(|slot| same_length("slot", var.len(), slot.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adam, Ftrl, Momentum, RuleExt, Sgd};

    #[test]
    fn rules_are_laid_out_as_they_say() {
        let rule: &dyn Rule = &Adam::default();
        assert_eq!(rule.name(), "adam");
        assert_eq!(rule.slots(), [SlotSpec::zeros("m"), SlotSpec::zeros("v")]);
        assert!((&Sgd as &dyn Rule).slots().is_empty());
    }

    // INV-12
    #[test]
    fn lengths_must_match_and_nothing_changes() {
        let (mut var, mut accum) = ([1.0f32; 4], [2.0f32; 4]);
        let mut short = [2.0f32; 3];
        let (rule, at) = (Momentum::default(), Step::after(0, 0.1));

        let error = rule.update(at, &mut var, &[1.0; 5], &mut [&mut accum]).unwrap_err();
        assert_eq!(error, UpdateError::LengthMismatch { what: "gradient", expected: 4, found: 5 });
        let error = rule.update(at, &mut var, &[1.0; 4], &mut []).unwrap_err();
        assert_eq!(error, UpdateError::LengthMismatch { what: "list of slots", expected: 1, found: 0 });
        let error = rule.update(at, &mut var, &[1.0; 4], &mut [&mut short]).unwrap_err();
        assert_eq!(error, UpdateError::LengthMismatch { what: "slot", expected: 4, found: 3 });
        assert_eq!(error.to_string(), "slot: expected a length of 4, found 3");
        assert_eq!((var, accum), ([1.0; 4], [2.0; 4]));
    }

    // INV-12
    #[test]
    fn rows_must_fit_and_nothing_changes() {
        let (mut var, at) = ([1.0f32; 6], Step::after(0, 0.1));
        let mut rows = |row_len, rows: &[usize], grads: &[f32]| {
            Sgd.update_rows(at, &mut var, row_len, rows, grads, &mut []).unwrap_err()
        };
        assert_eq!(rows(2, &[0, 3], &[1.0; 4]), UpdateError::RowOutOfRange { row: 3, rows: 3 });
        assert_eq!(rows(2, &[1, 0], &[1.0; 4]), UpdateError::RowsOutOfOrder { previous: 1, row: 0 });
        assert_eq!(rows(2, &[1, 1], &[1.0; 4]), UpdateError::RowsOutOfOrder { previous: 1, row: 1 });
        let what = "gradients of rows";
        assert_eq!(rows(2, &[0, 1], &[1.0; 3]), UpdateError::LengthMismatch { what, expected: 4, found: 3 });
        let what = "table of whole rows";
        assert_eq!(rows(4, &[0], &[1.0; 4]), UpdateError::LengthMismatch { what, expected: 4, found: 6 });
        assert_eq!(rows(0, &[], &[]), UpdateError::LengthMismatch { what, expected: 0, found: 6 });
        assert_eq!(var, [1.0; 6]);
    }

    #[test]
    fn empty_slices_and_empty_rows_are_fine() {
        let at = Step::after(0, 0.1);
        Sgd.update::<f32>(at, &mut [], &[], &mut []).unwrap();
        Sgd.update_rows::<f32>(at, &mut [], 0, &[], &[], &mut []).unwrap();
        Sgd.update_rows::<f32>(at, &mut [], 3, &[], &[], &mut []).unwrap();
        // A table of empty rows may have any number of them.
        let slots: &mut [&mut [f32]] = &mut [&mut [], &mut []];
        Adam::default().update_rows(at, &mut [], 0, &[0, usize::MAX], &[], slots).unwrap();
        let mut var = [1.0f64; 4];
        Sgd.update_rows(at, &mut var, 2, &[], &[], &mut []).unwrap();
        assert_eq!(var, [1.0; 4]);
    }

    #[test]
    fn learning_rates_that_would_give_nan_are_refused() {
        let (mut var, mut accum, mut linear) = ([1.0f32], [0.1f32], [0.0f32]);
        let error = Sgd.update(Step::after(0, f64::NAN), &mut var, &[1.0], &mut []).unwrap_err();
        assert_eq!(error.to_string(), "sgd: learning_rate is NaN, but must be finite");
        let slots = &mut [&mut accum[..], &mut linear[..]];
        let error = Ftrl::default().update(Step::after(0, 0.0), &mut var, &[1.0], slots).unwrap_err();
        assert_eq!(error.to_string(), "ftrl: learning_rate is 0, but must be finite and greater than 0");
        assert_eq!(var, [1.0]);
    }
}
