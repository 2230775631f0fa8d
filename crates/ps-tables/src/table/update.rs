//! Pushes of gradients, and the rule that applies them.

use super::Table;
use super::layout::StripeRange;
use super::stripes::{Stripe, slot_width};
use super::values::Values;
use crate::halves::{store_row, widened};
use crate::{Error, Push, Result};
use distribute_optim::{Float, Rule, RuleExt, SlotSpec, Step, Unit, UpdateError};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::kernel::RowMerge;
use distribute_tensor::{DType, Element, HostTensor};
use std::sync::Arc;

/// The rule of a table, and its slots.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) rule: Arc<dyn Rule>,
    pub(super) slots: Vec<SlotSpec>,
}

impl Table {
    /// Sets the rule that applies gradients. Does nothing if the table already has the same rule. Slots are created
    /// when the first gradient is pushed, or when slots are restored.
    ///
    /// # Errors
    /// - [`Error::RuleSet`]: the table has a different rule.
    /// - [`Error::Rule`]: a hyper-parameter of the rule is out of range.
    /// - [`Error::NeedsVariable`]: the rule needs complete variables.
    /// - [`Error::UnsupportedDType`]: the table is neither `float32` nor `float64`.
    pub fn set_rule(&self, rule: Arc<dyn Rule>) -> Result<()> {
        rule.validate()?;
        require_rows(&self.name, &*rule)?;
        if !matches!(self.dtype, DType::F32 | DType::F64) {
            let (table, dtype) = (self.name.clone(), self.dtype);
            return Err(Error::UnsupportedDType { operation: "set_rule", table, dtype });
        }
        let slots = rule.slots();
        let present = self.rule.get_or_init(|| Bound { rule: rule.clone(), slots });
        let (present, found) = (format!("{:?}", present.rule), format!("{rule:?}"));
        if present == found {
            Ok(())
        } else {
            Err(Error::RuleSet { table: self.name.clone(), present, found })
        }
    }

    /// Applies a gradient that contains one row for every row of the table.
    ///
    /// # Errors
    /// - [`Error::NoRule`]: the table has no rule.
    /// - [`Error::Shape`]: the gradient has a wrong shape.
    /// - [`Error::DType`]: the gradient has a wrong dtype.
    /// - [`Error::NotFinite`]: the gradient contains a NaN or infinite value, and the push [rejects](Push::finite) such
    ///   gradients.
    /// - [`Error::Update`]: the rule does not accept the learning rate.
    pub fn push(&self, push: Push, gradient: &HostTensor) -> Result<()> {
        const OPERATION: &str = "push";
        let bound = self.bound(OPERATION)?;
        self.check_whole(OPERATION, gradient)?;
        match (gradient.as_slice::<f32>(), gradient.as_slice::<f64>()) {
            (Some(gradient), _) => self.push_as(OPERATION, push, bound, gradient),
            (_, Some(gradient)) => self.push_as(OPERATION, push, bound, gradient),
            _ => Ok(()),
        }
    }

    /// Applies a gradient of some rows. `gradient` contains one row for each element of `rows`. Gradients of the same
    /// row are first summed, in the order of `rows`. The result is bit-identical to that of a single process with the
    /// same gradient.
    ///
    /// Other rows do not change, unless the rule [moves absent rows](distribute_optim::Rule::moves_absent_rows). With
    /// such a rule, push to every shard in every step, even if the gradient contains none of its rows.
    ///
    /// # Errors
    /// Returns the errors of [`push`](Table::push), and:
    /// - [`Error::Row`]: the table does not contain one of the rows.
    #[doc(alias = "tf.IndexedSlices")]
    #[doc(alias = "IndexedSlices")]
    pub fn push_rows(&self, push: Push, rows: &[usize], gradient: &HostTensor) -> Result<()> {
        const OPERATION: &str = "push_rows";
        let bound = self.bound(OPERATION)?;
        self.check_rows(OPERATION, rows, gradient)?;
        match (gradient.as_slice::<f32>(), gradient.as_slice::<f64>()) {
            (Some(gradient), _) => self.push_rows_as(OPERATION, push, bound, rows, gradient),
            (_, Some(gradient)) => self.push_rows_as(OPERATION, push, bound, rows, gradient),
            _ => Ok(()),
        }
    }

    fn push_as<F: Float + Element + Into<f64>>(
        &self,
        operation: &'static str,
        push: Push,
        bound: &Bound,
        gradient: &[F],
    ) -> Result<()> {
        self.check_finite(operation, push, gradient)?;
        let (step, width) = (self.steps.of(push), self.width());
        let widths: Vec<usize> = bound.slots.iter().map(|slot| slot_width(slot, width)).collect();
        let done = self.stripes.write_all(|number, stripe, stripe_ranges| {
            stripe.make_slots(&bound.slots, width);
            let Stripe { values, slots, .. } = stripe;
            let (mut opened, mut slots) = (Opened::new(values), open_slots(slots));
            let values = opened.values::<F>();
            for StripeRange { rows, local } in stripe_ranges {
                let of = |width: usize| local.start * width..local.end * width;
                let slots = slots.iter_mut().zip(&widths).map(|(slot, width)| &mut slot[of(*width)]);
                let mut slots: Vec<&mut [F]> = slots.collect();
                let (dims, gradient) = ([rows.len(), width], &gradient[rows.start * width..rows.end * width]);
                let updated =
                    bound.rule.update_shaped(step, &dims, &mut values[of(width)], gradient, &mut slots);
                updated.map_err(|source| self.not_applied(operation, source))?;
            }
            opened.store(|values, halves| self.store_all(step, number, values, halves));
            Ok(())
        });
        self.changed();
        done.inspect_err(|_| self.steps.undo(push, step))
    }

    fn push_rows_as<F: Float + Element + Into<f64>>(
        &self,
        operation: &'static str,
        push: Push,
        bound: &Bound,
        rows: &[usize],
        gradient: &[F],
    ) -> Result<()> {
        self.check_finite(operation, push, gradient)?;
        let step = self.steps.of(push);
        let (layout, width) = (self.stripes.layout, self.width());
        // Returns the rows at some positions by their index in the stripe, ascending and without duplicates,
        // and their sums.
        let merged = |positions: &[usize]| {
            let merge =
                RowMerge::new(&positions.iter().map(|at| layout.local(rows[*at])).collect::<Vec<_>>());
            let mut sums = vec![F::ZERO; merge.rows().len() * width];
            merge.sum_shared(positions, gradient, width, 0, &mut sums);
            (merge.into_rows(), sums)
        };
        let apply = |number: usize, stripe: &mut Stripe, (local, sums): (Vec<usize>, Vec<F>)| {
            stripe.make_slots(&bound.slots, width);
            let Stripe { values, slots, .. } = stripe;
            let updated = match values {
                Values::Halves(halves) if !bound.rule.moves_absent_rows() => {
                    let update = RowUpdate { bound, step, width, local: &local, sums: &sums };
                    update.of_halves(slots, halves, |values, halves| {
                        self.store_rows(step, number, &local, values, halves);
                    })
                }
                values => {
                    let (mut opened, mut slots) = (Opened::new(values), open_slots(slots));
                    let values = opened.values::<F>();
                    let updated = bound.rule.update_rows(step, values, width, &local, &sums, &mut slots);
                    updated
                        .map(|()| opened.store(|values, halves| self.store_all(step, number, values, halves)))
                }
            };
            updated.map_err(|source| self.not_applied(operation, source))
        };
        let by_stripe = self.stripes.by_stripe(rows);
        let done = if bound.rule.moves_absent_rows() {
            self.stripes.write_all(|i, stripe, _| apply(i, stripe, merged(by_stripe.of(i))))
        } else {
            by_stripe.each().try_for_each(|(stripe, positions)| {
                // Summed before the lock is taken.
                let merged = merged(positions);
                apply(stripe, &mut self.stripes.write(stripe), merged)
            })
        };
        if !rows.is_empty() || bound.rule.moves_absent_rows() {
            self.changed();
        }
        done.inspect_err(|_| self.steps.undo(push, step))
    }

    /// Returns the rule that applies gradients, if there is one.
    pub(crate) fn rule(&self) -> Option<&Arc<dyn Rule>> {
        self.rule.get().map(|bound| &bound.rule)
    }

    pub(super) fn bound(&self, operation: &'static str) -> Result<&Bound> {
        self.rule.get().ok_or_else(|| Error::NoRule { operation, table: self.name.clone() })
    }

    fn check_finite<F: Float + Into<f64>>(
        &self,
        operation: &'static str,
        push: Push,
        gradient: &[F],
    ) -> Result<()> {
        match push.refused(gradient) {
            None => Ok(()),
            Some((element, value)) => {
                Err(Error::NotFinite { operation, table: self.name.clone(), value, element })
            }
        }
    }

    fn not_applied(&self, operation: &'static str, source: UpdateError) -> Error {
        Error::Update { operation, table: self.name.clone(), source }
    }
}

/// Returns an error if a rule needs more than the rows of a table, or has slots that do not belong to rows.
pub(crate) fn require_rows(table: &str, rule: &dyn Rule) -> Result<()> {
    if rule.unit() <= Unit::Row && rule.slots().iter().all(|slot| slot.shape.per_row(1).is_some()) {
        return Ok(());
    }
    Err(Error::NeedsVariable { table: table.to_owned(), rule: rule.name() })
}

/// The values of a stripe during an update. Those stored in bf16 are converted to f32.
enum Opened<'a> {
    Full(&'a mut Buffer),
    Halves(Buffer, &'a mut [u16]),
}

impl<'a> Opened<'a> {
    fn new(values: &'a mut Values) -> Self {
        match values {
            Values::Full(values) => Self::Full(values),
            Values::Halves(halves) => Self::Halves(Buffer::F32(widened(halves)), halves),
        }
    }

    fn values<F: Element>(&mut self) -> &mut [F] {
        match self {
            Self::Full(values) => elements_mut(values),
            Self::Halves(values, _) => elements_mut(values),
        }
    }

    /// Calls `store` with the converted values and the bf16 values that they replace, unless values are not stored in
    /// bf16.
    fn store(self, store: impl FnOnce(&mut [f32], &mut [u16])) {
        if let Self::Halves(Buffer::F32(mut values), halves) = self {
            store(&mut values, halves);
        }
    }
}

/// An update of some rows of a stripe, in ascending order.
struct RowUpdate<'a, F> {
    bound: &'a Bound,
    step: Step,
    width: usize,
    local: &'a [usize],
    sums: &'a [F],
}

impl<F: Float + Element> RowUpdate<'_, F> {
    /// Applies the rule to copies of the rows, and writes them back. `store` is called with the new values of all
    /// updated rows, and all bf16 values of the stripe. If the rule fails, nothing has changed.
    fn of_halves(
        &self,
        slots: &mut [Buffer],
        halves: &mut [u16],
        store: impl FnOnce(&mut [f32], &mut [u16]),
    ) -> Result<(), UpdateError> {
        let Self { bound, step, width, local, sums } = self;
        let of = |row: &usize, width: usize| row * width..(row + 1) * width;
        let widths: Vec<usize> = bound.slots.iter().map(|slot| slot_width(slot, *width)).collect();
        let values = local.iter().flat_map(|row| widened(&halves[of(row, *width)])).collect();
        let mut values = Buffer::F32(values);
        let mut slots = open_slots::<F>(slots);
        let copy = |(slot, width): (&&mut [F], &usize)| -> Vec<F> {
            local.iter().flat_map(|row| slot[of(row, *width)].iter().copied()).collect()
        };
        let mut copies: Vec<Vec<F>> = slots.iter().zip(&widths).map(copy).collect();
        let mut open: Vec<&mut [F]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
        let dims = [local.len(), *width];
        bound.rule.update_shaped(*step, &dims, elements_mut(&mut values), sums, &mut open)?;
        for ((slot, copy), width) in slots.iter_mut().zip(&copies).zip(&widths) {
            for (row, copy) in local.iter().zip(copy.chunks_exact((*width).max(1))) {
                slot[of(row, *width)].copy_from_slice(copy);
            }
        }
        if let Buffer::F32(mut values) = values {
            store(&mut values, halves);
        }
        Ok(())
    }
}

impl Table {
    // INV-95
    /// Rounds and stores the new values of all rows of a stripe.
    fn store_all(&self, step: Step, stripe: usize, values: &mut [f32], halves: &mut [u16]) {
        let rows: Vec<usize> = (0..self.stripes.layout.len(stripe)).collect();
        self.store_rows(step, stripe, &rows, values, halves);
    }

    /// Rounds the new values of some rows of a stripe. Stores them in `halves`, which contains all rows of the stripe.
    fn store_rows(&self, step: Step, stripe: usize, local: &[usize], values: &mut [f32], halves: &mut [u16]) {
        let Some(of_table) = self.halves.filter(|_| self.width() > 0) else { return };
        let (rounding, width) = (of_table.rounding.of_step(step), self.width());
        for (local, values) in local.iter().zip(values.chunks_exact_mut(width)) {
            let row = of_table.row(self.stripes.layout.row(stripe, *local));
            store_row(rounding, row, values, &mut halves[local * width..(local + 1) * width]);
        }
    }
}

fn open_slots<F: Element>(slots: &mut [Buffer]) -> Vec<&mut [F]> {
    slots.iter_mut().map(elements_mut).collect()
}

fn elements_mut<F: Element>(buffer: &mut Buffer) -> &mut [F] {
    F::vec_mut(buffer).map(Vec::as_mut_slice).unwrap_or_default()
}
