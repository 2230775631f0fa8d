//! Gradients, and the rule that applies them to the values.

use super::Table;
use super::layout::StripeRange;
use super::stripes::{Stripe, slot_width};
use crate::{Error, Push, Result};
use distribute_optim::{Float, Rule, RuleExt, SlotSpec, Unit, UpdateError};
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
    /// Sets the rule that applies gradients. Slots are created when the first gradient is pushed.
    ///
    /// Setting the same rule again does nothing.
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

    /// Applies a gradient of some rows; `gradient` contains one row for each element of `rows`. Gradients of the same
    /// row are first summed, in the order of `rows`. The result is bit-identical to that of a single process with the
    /// same gradient.
    ///
    /// Other rows do not change, unless the rule [moves absent rows](distribute_optim::Rule::moves_absent_rows). In
    /// that case, every shard must receive a push in every step, even if the gradient contains none of its rows.
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
        let done = self.stripes.write_all(|_, stripe, stripe_ranges| {
            let (values, mut slots) = stripe.open::<F>(&bound.slots, width);
            for StripeRange { rows, local } in stripe_ranges {
                let of = |width: usize| local.start * width..local.end * width;
                let slots = slots.iter_mut().zip(&widths).map(|(slot, width)| &mut slot[of(*width)]);
                let mut slots: Vec<&mut [F]> = slots.collect();
                let (dims, gradient) = ([rows.len(), width], &gradient[rows.start * width..rows.end * width]);
                let updated =
                    bound.rule.update_shaped(step, &dims, &mut values[of(width)], gradient, &mut slots);
                updated.map_err(|source| self.not_applied(operation, source))?;
            }
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
        let apply = |stripe: &mut Stripe, (local, sums): (Vec<usize>, Vec<F>)| {
            let (values, mut slots) = stripe.open::<F>(&bound.slots, width);
            let updated = bound.rule.update_rows(step, values, width, &local, &sums, &mut slots);
            updated.map_err(|source| self.not_applied(operation, source))
        };
        let by_stripe = self.stripes.by_stripe(rows);
        let done = if bound.rule.moves_absent_rows() {
            self.stripes.write_all(|i, stripe, _| apply(stripe, merged(by_stripe.of(i))))
        } else {
            by_stripe.each().try_for_each(|(stripe, positions)| {
                // Summed before the lock is taken.
                let merged = merged(positions);
                apply(&mut self.stripes.write(stripe), merged)
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

impl Stripe {
    /// Returns values and slots for modification, and creates the slots if they do not exist yet.
    fn open<F: Element>(&mut self, specs: &[SlotSpec], width: usize) -> (&mut [F], Vec<&mut [F]>) {
        self.make_slots(specs, width);
        fn open<F: Element>(buffer: &mut distribute_tensor::dtype::Buffer) -> &mut [F] {
            F::vec_mut(buffer).map(Vec::as_mut_slice).unwrap_or_default()
        }
        (open(&mut self.values), self.slots.iter_mut().map(open).collect())
    }
}
