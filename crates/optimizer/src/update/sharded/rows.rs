//! The update of the rows of a table that are in a worker's range, with the gradients of all replicas. New values are
//! written to separate memory.

use crate::reduce::rows::RowRange;
use crate::reduce::split::Splittable;
use crate::slots::slot_range;
use crate::transform::ResolvedTransforms;
use crate::update::sharded::Write;
use crate::update::touched::{Touched, clipped, rows_of};
use distribute_base::internal::Number;
use distribute_decisions::internal::BLOCK;
use distribute_optim::{Rule, RuleExt, Step, Unit, UpdateError};
use distribute_tensor::kernel::fold_scaled;
use std::ops::Range;
use std::sync::Arc;

/// A range of a table's elements, with the gradients of its rows. It may begin and end inside a row, unless the rule
/// needs complete rows.
pub(crate) struct RowShard<'a, F> {
    pub(crate) variable: usize,
    /// The range of elements in the table.
    pub(crate) at: Range<usize>,
    /// The elements of the table that change.
    pub(crate) touched: &'a Touched,
    /// The values of the elements before the update.
    pub(crate) old: &'a [F],
    /// The memory for the new values of the elements that change, without gaps.
    pub(crate) new: &'a mut [F],
    pub(crate) slots: Vec<&'a mut [F]>,
    /// The rows that have at least one element in the range.
    pub(crate) rows: RowRange<'a, F>,
    pub(crate) weights: Arc<[F]>,
    /// The unit of the rule, and the shape of the table.
    pub(crate) shape: (Unit, &'a [usize]),
}

impl<'a, F> Splittable for RowShard<'a, F> {
    fn len(&self) -> usize {
        self.rows.work()
    }

    fn split_front(&mut self, len: usize) -> Self {
        let rows = self.rows.split_front(len);
        let end = ((rows.first() + rows.height()) * rows.row_len).clamp(self.at.start, self.at.end);
        let at = self.at.start..end;
        self.at.start = end;
        let count = self.touched.count(&at);
        let (elements, row_len, is_whole) = (self.old.len(), rows.row_len, self.is_whole());
        let of_slot = |slot: &mut &'a mut [F]| {
            if is_whole {
                return std::mem::take(slot);
            }
            let end = slot_range(&(0..at.len()), (slot.len(), elements), row_len).end;
            slot.split_off_mut(..end).unwrap_or_default()
        };
        Self {
            variable: self.variable,
            touched: self.touched,
            slots: self.slots.iter_mut().map(of_slot).collect(),
            old: self.old.split_off(..at.len()).unwrap_or_default(),
            new: self.new.split_off_mut(..count).unwrap_or_default(),
            at,
            rows,
            weights: self.weights.clone(),
            shape: self.shape,
        }
    }

    fn is_whole(&self) -> bool {
        self.shape.0 == Unit::Variable
    }
}

impl<'a, F: Number> RowShard<'a, F> {
    /// Creates the shard for the range `at`, with the rows of the table that have at least one element in it.
    pub(crate) fn new(
        variable: usize,
        (rows, weights): (RowRange<'a, F>, Arc<[F]>),
        (at, touched): (Range<usize>, &'a Touched),
        (old, new): (&'a [F], &'a mut [F]),
        slots: &'a mut [Vec<F>],
        shape: (Unit, &'a [usize]),
    ) -> Self {
        let there = rows_of(&at, rows.row_len);
        let rows = rows.restrict(there);
        let slots = slots.iter_mut().map(Vec::as_mut_slice).collect();
        Self { variable, at, touched, old, new, slots, rows, weights, shape }
    }

    /// Replaces the slots, for example by copies.
    pub(crate) fn with_slots<'s>(self, slots: Vec<&'s mut [F]>) -> RowShard<'s, F>
    where
        'a: 's,
    {
        let shard: RowShard<'s, F> = self;
        RowShard { slots, ..shard }
    }

    /// Reduces and transforms the gradients, and applies the rule. With [`Write::ValuesOnly`], the shard must have only
    /// some rows that change.
    pub(crate) fn update(
        mut self,
        rule: &dyn Rule,
        step: Step,
        resolved: &ResolvedTransforms,
        write: Write,
    ) -> Result<(), UpdateError> {
        match self.touched {
            Touched::All => self.update_all(rule, step, resolved),
            Touched::Rows(..) => self.update_rows(rule, step, resolved, write),
        }
    }

    /// Updates all rows, for a rule that also changes rows without a gradient.
    fn update_all(
        &mut self,
        rule: &dyn Rule,
        step: Step,
        resolved: &ResolvedTransforms,
    ) -> Result<(), UpdateError> {
        let mut gradient = vec![F::of(0.); self.at.len()];
        self.each(resolved, |at, sum| {
            gradient[at].copy_from_slice(sum);
            Ok(())
        })?;
        self.new.copy_from_slice(self.old);
        let row_len = self.rows.row_len;
        match self.shape {
            (Unit::Element, _) => rule.update(step, self.new, &gradient, &mut self.slots),
            (Unit::Row, _) => {
                let dims = [gradient.len() / row_len.max(1), row_len];
                rule.update_shaped(step, &dims, self.new, &gradient, &mut self.slots)
            }
            (Unit::Variable, dims) => rule.update_shaped(step, dims, self.new, &gradient, &mut self.slots),
        }
    }

    /// Updates only the rows with a gradient, in batches that stay in the cache.
    fn update_rows(
        &mut self,
        rule: &dyn Rule,
        step: Step,
        resolved: &ResolvedTransforms,
        write: Write,
    ) -> Result<(), UpdateError> {
        let mut new = std::mem::take(&mut self.new);
        let mut slots = std::mem::take(&mut self.slots);
        // Rows that need not be complete are updated like elements.
        let row_len = (self.shape.0 != Unit::Element).then_some(self.rows.row_len);
        let (old, mut batch) = (self.old, RowBatch::new(slots.len(), row_len));
        self.each(resolved, |at, sum| {
            batch.add(at, sum);
            if batch.gradient.len() >= BLOCK {
                batch.apply(rule, step, old, &mut new, &mut slots, write)?;
            }
            Ok(())
        })?;
        batch.apply(rule, step, old, &mut new, &mut slots, write)
    }

    /// Calls `then` for each row in the range that has a gradient, with the positions of the row's elements relative to
    /// the start of the range, and with the gradient. Elements outside the range are omitted.
    fn each(
        &self,
        resolved: &ResolvedTransforms,
        mut then: impl FnMut(Range<usize>, &[F]) -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        let (width, first) = (self.rows.row_len, self.rows.first());
        let mut sum = vec![F::of(0.); width];
        self.rows.each(|row, inputs| {
            let begins = (first + row) * width;
            let elements = clipped(first + row, width, &self.at);
            let sum = &mut sum[..elements.len()];
            if elements.len() == width {
                fold_scaled(inputs, &self.weights, sum);
            } else {
                // The first row or the last.
                let here = elements.start - begins..elements.end - begins;
                let inputs: Vec<&[F]> = inputs.iter().map(|input| &input[here.clone()]).collect();
                fold_scaled(&inputs, &self.weights, sum);
            }
            let at = elements.start - self.at.start..elements.end - self.at.start;
            resolved.apply(self.variable, sum, &self.old[at.clone()]);
            then(at, sum)
        })
    }
}

/// A batch of rows that are updated together.
struct RowBatch<F> {
    /// The ranges of the rows' elements, relative to the start of the shard.
    spans: Vec<Range<usize>>,
    gradient: Vec<F>,
    /// The rows' elements in each slot.
    slots: Vec<Vec<F>>,
    /// The number of elements of a row, if the rule needs complete rows.
    row_len: Option<usize>,
}

impl<F: Number> RowBatch<F> {
    fn new(slots: usize, row_len: Option<usize>) -> Self {
        Self { spans: Vec::new(), gradient: Vec::new(), slots: vec![Vec::new(); slots], row_len }
    }

    fn add(&mut self, at: Range<usize>, gradient: &[F]) {
        self.spans.push(at);
        self.gradient.extend_from_slice(gradient);
    }

    /// Updates the batch and begins a new one. The new values are written to the start of `new`, which is then
    /// shortened by them.
    fn apply(
        &mut self,
        rule: &dyn Rule,
        step: Step,
        old: &[F],
        new: &mut &mut [F],
        slots: &mut [&mut [F]],
        write: Write,
    ) -> Result<(), UpdateError> {
        let values = new.split_off_mut(..self.gradient.len()).unwrap_or_default();
        gather(&self.spans, old, values);
        let row_len = self.row_len;
        let of_slot = |span: &Range<usize>, slot: &[F]| match row_len {
            Some(row_len) => slot_range(span, (slot.len(), old.len()), row_len),
            None => span.clone(),
        };
        for (batch, slot) in self.slots.iter_mut().zip(slots.iter()) {
            batch.clear();
            self.spans.iter().for_each(|span| batch.extend_from_slice(&slot[of_slot(span, slot)]));
        }
        let mut of_rule: Vec<&mut [F]> = self.slots.iter_mut().map(Vec::as_mut_slice).collect();
        match row_len {
            Some(row_len) => {
                let dims = [self.spans.len(), row_len];
                rule.update_shaped(step, &dims, values, &self.gradient, &mut of_rule)?;
            }
            None => rule.update(step, values, &self.gradient, &mut of_rule)?,
        }
        let written: &mut [&mut [F]] = if write == Write::InPlace { slots } else { &mut [] };
        for (batch, slot) in self.slots.iter().zip(written) {
            let mut rest = batch.as_slice();
            for span in &self.spans {
                let at = of_slot(span, slot);
                let (here, after) = rest.split_at(at.len());
                slot[at].copy_from_slice(here);
                rest = after;
            }
        }
        self.spans.clear();
        self.gradient.clear();
        Ok(())
    }
}

fn gather<F: Copy>(spans: &[Range<usize>], from: &[F], mut to: &mut [F]) {
    for span in spans {
        if let Some(place) = to.split_off_mut(..span.len()) {
            place.copy_from_slice(&from[span.clone()]);
        }
    }
}
