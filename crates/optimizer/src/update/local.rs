//! The update of variables in the memory of this process. Gradients are reduced, transformed and applied block by
//! block, in one pass.

use crate::groups::Rules;
use crate::parameters::Parameters;
use crate::progress::Change;
use crate::reduce::operands::Operands;
use crate::reduce::range::{GradientRange, Summands, blocks};
use crate::reduce::resolve;
use crate::reduce::rows::RowRange;
use crate::reduce::split::{Splittable, WorkSplit};
use crate::slots::{MAX_SLOTS, Slots, slot_range};
use crate::sync::Threads;
use crate::transform::{ResolvedTransforms, Transform};
use crate::update::locked::{LOCKED, Locked, with_locked};
use crate::update::{Backend, Pass, Update, rounding};
use candle_core::Var;
use distribute_base::internal::{EitherFloat, Number};
use distribute_base::{Error, Result};
use distribute_decisions::internal::BLOCK;
use distribute_optim::{Rule, RuleExt, Step, Unit, UpdateError};
use distribute_tensor::kernel::fold_scaled;
use std::ops::Range;

/// A backend that updates variables in place, or through copies if a rule may do more than compute. It never calls the
/// program's code while replicas wait without a deadline.
#[derive(Debug)]
pub(crate) struct Local;

impl Backend for Local {
    fn reduce_and_apply(&self, update: &Update<'_>, pass: &Pass<'_>) -> Result<()> {
        InPlaceUpdater::new(update, update.transforms).reduce_and_apply(
            pass.change,
            pass.operands,
            pass.threads,
        )
    }
}

/// An update of variables in place.
pub(crate) struct InPlaceUpdater<'a> {
    pub(crate) rules: &'a Rules<'a>,
    /// The transforms that are applied to the sums before the update. None of them is a closure.
    pub(crate) transforms: &'a [Transform],
    pub(crate) parameters: &'a Parameters,
}

impl<'a> InPlaceUpdater<'a> {
    /// Creates the updater for a step. The sums are first changed by `transforms`.
    pub(crate) fn new(update: &'a Update<'_>, transforms: &'a [Transform]) -> Self {
        Self { rules: &update.rules, transforms, parameters: update.parameters() }
    }

    /// Reduces and transforms the gradients, and applies the rules to all variables that have a gradient on at least
    /// one replica.
    pub(crate) fn reduce_and_apply(
        &self,
        change: &Change<'_>,
        all: &Operands<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let Self { rules, transforms, parameters } = self;
        let mut variables = all.variables();
        let resolved = resolve(transforms, parameters, &variables, threads, Ok)?;

        let _writing = parameters.mark_written(variables.iter().map(|variable| variable.index));
        let mut slots = change.slots();
        let mut slots: Vec<Option<&mut Slots>> = slots.iter_mut().map(Some).collect();
        for variables in variables.chunks_mut(LOCKED) {
            let tensors: Vec<&Var> = variables.iter().map(|variable| variable.variable).collect();
            with_locked(&tensors, |elements| {
                let ranges = elements.into_iter().zip(variables).map(|(values, variable)| {
                    let slots = slots[variable.index].take();
                    let every_row = rules.visits_every_row(variable.index);
                    let (unit, dims) = (rules.of(variable.index).0.unit(), variable.variable.dims());
                    match (values, slots, variable.range(every_row, None)?) {
                        (Locked::F32(values), Some(Slots::F32(slots)), EitherFloat::F32(gradient)) => {
                            Ok(EitherFloat::F32(UpdateRange::new(values, slots, gradient, (unit, dims))))
                        }
                        (Locked::F64(values), Some(Slots::F64(slots)), EitherFloat::F64(gradient)) => {
                            Ok(EitherFloat::F64(UpdateRange::new(values, slots, gradient, (unit, dims))))
                        }
                        _ => Err(Error::invalid(
                            "optimizer step",
                            format!("variable {} has changed its dtype", variable.name),
                        )),
                    }
                });
                let split = WorkSplit::partition(threads.count, ranges.collect::<Result<Vec<_>>>()?);
                split.each(threads, |ranges| {
                    ranges.into_iter().try_for_each(|range| match range {
                        EitherFloat::F32(range) => Ok(update(range, rules, &resolved)?),
                        EitherFloat::F64(range) => Ok(update(range, rules, &resolved)?),
                    })
                })?;
                Ok(())
            })?;
        }
        rounding::round_updated(parameters, rules, &variables)
    }
}

/// A range of a variable, its slots, and its gradients.
pub(crate) struct UpdateRange<'a, F> {
    values: &'a mut [F],
    /// The values before the update, if the new values are written to separate memory; `None` if `values` contains
    /// them.
    old: Option<&'a [F]>,
    slots: Vec<&'a mut [F]>,
    gradients: GradientRange<'a, F>,
    /// The shape of the variable, if the rule needs more than single elements at once and the range must not be split.
    /// Gradients by row are split between rows.
    whole: Option<&'a [usize]>,
}

impl<'a, F> UpdateRange<'a, F> {
    /// Creates the range of a complete variable of shape `dims`, for a rule with the given unit.
    pub(crate) fn new(
        values: &'a mut [F],
        slots: &'a mut [Vec<F>],
        gradients: GradientRange<'a, F>,
        (unit, dims): (Unit, &'a [usize]),
    ) -> Self {
        let is_whole = match unit {
            Unit::Element => false,
            Unit::Row => matches!(gradients.summands, Summands::Dense(_)),
            Unit::Variable => true,
        };
        let slots = slots.iter_mut().map(Vec::as_mut_slice).collect();
        Self { values, old: None, slots, gradients, whole: is_whole.then_some(dims) }
    }

    /// Sets the values before the update. The new values are then written to separate memory.
    pub(crate) fn with_old(self, old: &'a [F]) -> Self {
        Self { old: Some(old), ..self }
    }

    /// Returns the slots.
    pub(crate) fn slots(&self) -> &[&'a mut [F]] {
        &self.slots
    }

    /// Replaces the slots, for example by copies.
    pub(crate) fn with_slots<'s>(self, slots: Vec<&'s mut [F]>) -> UpdateRange<'s, F>
    where
        'a: 's,
    {
        let range: UpdateRange<'s, F> = self;
        UpdateRange { slots, ..range }
    }
}

impl<'a, F> Splittable for UpdateRange<'a, F> {
    fn len(&self) -> usize {
        self.gradients.len()
    }
    fn split_front(&mut self, len: usize) -> Self {
        let (elements, whole) = (self.values.len(), self.whole);
        let gradients = self.gradients.split_front(len);
        let (len, row_len) = (gradients.elements(), gradients.row_len());
        let of_slot = |slot: &mut &'a mut [F]| match (whole, row_len) {
            (Some(_), _) => std::mem::take(slot),
            (None, Some(row_len)) => {
                let end = slot_range(&(0..len), (slot.len(), elements), row_len).end;
                slot.split_off_mut(..end).unwrap_or_default()
            }
            (None, None) => slot.split_off_mut(..len).unwrap_or_default(),
        };
        Self {
            values: self.values.split_off_mut(..len).unwrap_or_default(),
            old: self.old.as_mut().map(|old| old.split_off(..len).unwrap_or_default()),
            slots: self.slots.iter_mut().map(of_slot).collect(),
            gradients,
            whole,
        }
    }
    fn is_whole(&self) -> bool {
        self.whole.is_some()
    }
}

/// Reduces and transforms the gradient of a range and applies the rule.
pub(crate) fn update<F: Number>(
    range: UpdateRange<'_, F>,
    rules: &Rules<'_>,
    resolved: &ResolvedTransforms,
) -> Result<(), UpdateError> {
    let UpdateRange { values, old, mut slots, gradients, whole } = range;
    let (rule, step) = rules.of(gradients.variable);
    if let Some(dims) = whole {
        if let Some(old) = old {
            values.copy_from_slice(old);
        }
        let gradient = gradients.complete(resolved, values);
        return rule.update_shaped(step, dims, values, &gradient, &mut slots);
    }
    let of_replicas = match &gradients.summands {
        Summands::Dense(of_replicas) => of_replicas,
        Summands::Rows(rows) => {
            return update_rows(rows, &gradients, values, &mut slots, rule, step, resolved);
        }
    };
    let mut scratch = [F::of(0.); BLOCK];
    let kept = slots.len().min(MAX_SLOTS);
    for at in blocks(values.len()) {
        if let Some(old) = old {
            values[at.clone()].copy_from_slice(&old[at.clone()]);
        }
        let gradient = gradients.block(of_replicas, resolved, at.clone(), &values[at.clone()], &mut scratch);
        let mut of_block = ranges_of(&mut slots, &at);
        rule.update(step, &mut values[at], gradient, &mut of_block[..kept])?;
    }
    Ok(())
}

/// Updates rows: all at once if their gradients need no change, and otherwise in batches, so small that the sums stay
/// in the cache until the rule has used them.
fn update_rows<F: Number>(
    range: &RowRange<'_, F>,
    gradients: &GradientRange<'_, F>,
    values: &mut [F],
    slots: &mut [&mut [F]],
    rule: &dyn Rule,
    step: Step,
    resolved: &ResolvedTransforms,
) -> Result<(), UpdateError> {
    let (row_len, stays) = (range.row_len, resolved.is_identity(gradients.variable));
    if let (true, Some((rows, sums))) = (stays, range.only(&gradients.weights)) {
        return rule.update_rows(step, values, row_len, &rows, sums, slots);
    }
    let (kept, most) = (slots.len().min(MAX_SLOTS), (BLOCK / row_len.max(1)).max(1));
    let (mut rows, mut sums) = (Vec::with_capacity(most), vec![F::of(0.); most * row_len]);
    // A block includes the rows without a gradient up to the next block, because some rules move them.
    let mut start = 0;
    let elements = values.len();
    let mut apply = |values: &mut [F], start: usize, end: usize, rows: &[usize], sums: &[F]| {
        let at = start * row_len..end * row_len;
        let mut of_block: [&mut [F]; MAX_SLOTS] = Default::default();
        for (block, slot) in of_block.iter_mut().zip(slots.iter_mut()) {
            let at = slot_range(&at, (slot.len(), elements), row_len);
            *block = &mut slot[at];
        }
        rule.update_rows(step, &mut values[at], row_len, rows, sums, &mut of_block[..kept])
    };
    range.each(|row, inputs| {
        if rows.len() == most {
            apply(values, start, row, &rows, &sums)?;
            start = row;
            rows.clear();
        }
        let sum = &mut sums[rows.len() * row_len..][..row_len];
        fold_scaled(inputs, &gradients.weights, sum);
        if !stays {
            resolved.apply(gradients.variable, sum, &values[row * row_len..][..row_len]);
        }
        rows.push(row - start);
        Ok::<_, UpdateError>(())
    })?;
    apply(values, start, range.height(), &rows, &sums[..rows.len() * row_len])
}

/// Returns the range `at` of each slot, for up to [`MAX_SLOTS`] slots. The array avoids an allocation for each block.
fn ranges_of<'s, F>(slots: &'s mut [&mut [F]], at: &Range<usize>) -> [&'s mut [F]; MAX_SLOTS] {
    let mut of_block: [&mut [F]; MAX_SLOTS] = Default::default();
    for (block, slot) in of_block.iter_mut().zip(slots) {
        *block = &mut slot[at.clone()];
    }
    of_block
}
