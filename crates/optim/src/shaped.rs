//! Rules that need complete rows or variables: their formulas, and the checks before them.

// - INV-11 holds for their units: rows do not affect each other, and a variable is never split. Tests:
//   `optim/tests/it/properties.rs`.
// - INV-12: `check_shaped` and `check_rows_of` precede every write.

use crate::error::same_length;
use crate::rows::check_rows;
use crate::{Float, InvalidHyperparameter, RuleSpec, SlotSpec, Step, Unit, UpdateError};
use std::fmt::Debug;

/// A rule of this crate that needs complete rows or variables. The macro `shaped_rule!` implements
/// [`Rule`](crate::Rule) for it.
pub(crate) trait Shaped: Debug + Clone + Send + Sync + 'static {
    const UNIT: Unit;
    /// Whether an update by row also changes rows without a gradient.
    const EVERY_ROW: bool;

    fn label(&self) -> &'static str;

    fn layout(&self) -> Vec<SlotSpec>;

    fn check(&self) -> Result<(), InvalidHyperparameter>;

    fn spec(&self) -> RuleSpec;

    /// Applies one step to a variable of shape `dims`. The caller has checked all lengths, and there is at least one
    /// element.
    fn apply<F: Float>(&self, at: Step, dims: &[usize], var: &mut [F], grad: &[F], slots: &mut [&mut [F]]);

    /// Applies one step to the given rows. The caller has checked all arguments. This is only called if the unit is
    /// [`Unit::Row`].
    fn apply_rows<F: Float>(
        &self,
        _at: Step,
        _var: &mut [F],
        _row_len: usize,
        _by_row: (&[usize], &[F]),
        _slots: &mut [&mut [F]],
    ) {
    }
}

/// Implements [`Rule`](crate::Rule) for types that are [`Shaped`].
macro_rules! shaped_rule {
    ($($rule:ident),*) => {$(
        impl $crate::Rule for $rule {
            fn name(&self) -> &'static str {
                $crate::shaped::Shaped::label(self)
            }

            fn slots(&self) -> Vec<$crate::SlotSpec> {
                $crate::shaped::Shaped::layout(self)
            }

            fn unit(&self) -> $crate::Unit {
                <$rule as $crate::shaped::Shaped>::UNIT
            }

            fn validate(&self) -> Result<(), $crate::InvalidHyperparameter> {
                $crate::shaped::Shaped::check(self)
            }

            fn moves_absent_rows(&self) -> bool {
                <$rule as $crate::shaped::Shaped>::EVERY_ROW
            }

            fn only_computes(&self) -> bool {
                true
            }

            fn spec(&self) -> Option<$crate::RuleSpec> {
                Some($crate::shaped::Shaped::spec(self))
            }

            $crate::shaped::shaped_rule!(@methods f32, update_f32, update_shaped_f32, update_rows_f32);
            $crate::shaped::shaped_rule!(@methods f64, update_f64, update_shaped_f64, update_rows_f64);
        }
    )*};
    (@methods $float:ident, $update:ident, $update_shaped:ident, $update_rows:ident) => {
        fn $update(
            &self,
            _at: $crate::Step,
            _var: &mut [$float],
            _grad: &[$float],
            _slots: &mut [&mut [$float]],
        ) -> Result<(), $crate::UpdateError> {
            Err($crate::UpdateError::NeedsShape { rule: self.name(), unit: self.unit() })
        }

        fn $update_shaped(
            &self,
            at: $crate::Step,
            dims: &[usize],
            var: &mut [$float],
            grad: &[$float],
            slots: &mut [&mut [$float]],
        ) -> Result<(), $crate::UpdateError> {
            $crate::shaped::update(self, at, dims, var, grad, slots)
        }

        fn $update_rows(
            &self,
            at: $crate::Step,
            var: &mut [$float],
            row_len: usize,
            rows: &[usize],
            grads: &[$float],
            slots: &mut [&mut [$float]],
        ) -> Result<(), $crate::UpdateError> {
            $crate::shaped::update_rows(self, at, var, row_len, (rows, grads), slots)
        }
    };
}
pub(crate) use shaped_rule;

pub(crate) fn update<R: Shaped, F: Float>(
    rule: &R,
    at: Step,
    dims: &[usize],
    var: &mut [F],
    grad: &[F],
    slots: &mut [&mut [F]],
) -> Result<(), UpdateError> {
    check_rate(rule, at)?;
    same_length("gradient", var.len(), grad.len())?;
    check_shaped(&rule.layout(), dims, var, slots)?;
    if !var.is_empty() {
        rule.apply(at, dims, var, grad, slots);
    }
    Ok(())
}

pub(crate) fn update_rows<R: Shaped, F: Float>(
    rule: &R,
    at: Step,
    var: &mut [F],
    row_len: usize,
    (rows, grads): (&[usize], &[F]),
    slots: &mut [&mut [F]],
) -> Result<(), UpdateError> {
    if R::UNIT != Unit::Row {
        return Err(UpdateError::NeedsShape { rule: rule.label(), unit: R::UNIT });
    }
    check_rate(rule, at)?;
    check_rows(var.len(), row_len, rows, grads.len())?;
    check_rows_of(&rule.layout(), var, row_len, slots)?;
    if row_len > 0 {
        rule.apply_rows(at, var, row_len, (rows, grads), slots);
    }
    Ok(())
}

fn check_rate<R: Shaped>(rule: &R, at: Step) -> Result<(), UpdateError> {
    let rate = at.learning_rate();
    Ok(crate::error::Check(rule.label()).that(rate.is_finite(), "learning_rate", rate, "finite")?)
}

/// Checks the lengths of a variable of shape `dims` and of its slots.
pub(crate) fn check_shaped<F>(
    layout: &[SlotSpec],
    dims: &[usize],
    var: &[F],
    slots: &[&mut [F]],
) -> Result<(), UpdateError> {
    same_length("variable of this shape", dims.iter().product(), var.len())?;
    same_length("list of slots", layout.len(), slots.len())?;
    let mut all = layout.iter().zip(slots);
    all.try_for_each(|(spec, slot)| same_length("slot", spec.shape.elements(dims), slot.len()))
}

/// Checks the lengths of the slots of complete rows. If rows are empty, their number is unknown, and only the number of
/// slots is checked.
pub(crate) fn check_rows_of<F>(
    layout: &[SlotSpec],
    var: &[F],
    row_len: usize,
    slots: &[&mut [F]],
) -> Result<(), UpdateError> {
    same_length("list of slots", layout.len(), slots.len())?;
    let Some(rows) = var.len().checked_div(row_len) else { return Ok(()) };
    let of = |spec: &SlotSpec| rows * spec.shape.per_row(row_len).unwrap_or(0);
    let mut all = layout.iter().zip(slots);
    all.try_for_each(|(spec, slot)| same_length("slot", of(spec), slot.len()))
}

/// Returns the sum of squares in an order that depends only on the number of elements. There are 8 partial sums, so
/// that the compiler vectorizes the loop.
pub(crate) fn squares<F: Float>(values: &[F]) -> F {
    let mut lanes = [F::ZERO; 8];
    for eight in values.chunks(8) {
        lanes.iter_mut().zip(eight).for_each(|(lane, x)| *lane += *x * *x);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Sums of squares in `f64`, one for each lane of a vector. The sum depends only on the elements and their order.
#[derive(Default)]
pub(crate) struct Lanes([f64; Lanes::COUNT]);

impl Lanes {
    pub(crate) const COUNT: usize = 8;

    /// Adds the square of a number to the sum of a lane, and returns the square.
    #[inline]
    pub(crate) fn add_square<F: Float>(&mut self, lane: usize, number: F) -> f64 {
        let number = number.widened();
        let square = number * number;
        self.0[lane % Self::COUNT] += square;
        square
    }

    pub(crate) fn sum(self) -> f64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::{Rule, RuleExt, Step};

    /// Returns the elements of a variable of shape `dims` after four steps, with gradients that change their signs.
    pub(crate) fn after_four_steps(rule: &dyn Rule, dims: &[usize], rate: f64) -> Vec<f64> {
        let n = dims.iter().product();
        let mut var: Vec<f64> = (0..n).map(|i| ((i * 3) % 7) as f64 / 4.0 - 0.7).collect();
        let slots = rule.slots();
        let mut slots: Vec<_> =
            slots.iter().map(|slot| vec![slot.initial; slot.shape.elements(dims)]).collect();
        for step in 1..=4 {
            let grad: Vec<f64> = (0..n).map(|i| ((i * 7 + step * 5) % 11) as f64 / 10.0 - 0.5).collect();
            let mut slots: Vec<&mut [f64]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
            rule.update_shaped(Step::after(step as u64 - 1, rate), dims, &mut var, &grad, &mut slots)
                .unwrap();
        }
        var
    }

    pub(crate) fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
        let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < tolerance;
        let same = found.len() == expected.len() && found.iter().zip(expected).all(close);
        assert!(same, "{found:?}, not {expected:?}");
    }
}
