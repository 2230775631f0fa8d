//! Saving and restoring the values and slots of a table consistently.

use super::Table;
use super::layout::StripeRange;
use super::read::WholeBuffer;
use super::stripes::{initial, slot_width};
use super::values::copy;
use super::write::part;
use crate::{Error, Result};
use distribute_optim::SlotSpec;
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{HostTensor, Write};
use std::ops::Range;

/// The values and slots of a table or of some of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct TableState {
    /// The version of the table before the state was read.
    pub version: u64,
    /// The values of the rows.
    pub values: HostTensor,
    /// The slots of the table's rule by name. The contents have the [shape](distribute_optim::SlotSpec::shape) of the
    /// slot.
    pub slots: Vec<(String, HostTensor)>,
}

impl Table {
    /// Returns all values and slots, in a state between two pushes to the complete table.
    ///
    /// # Errors
    /// - [`Error::NoMemory`]: there is not enough memory for the result.
    pub fn state(&self) -> Result<TableState> {
        let version = self.version();
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let mut values = WholeBuffer::new(self)?;
        let mut slots: Vec<WholeBuffer> =
            specs.iter().map(|spec| WholeBuffer::of_slot(self, spec)).collect::<Result<_>>()?;
        self.stripes.read_all(|stripe, stripe_ranges| {
            let stripe_ranges: Vec<_> = stripe_ranges.collect();
            values.put_values(&stripe.values, &mut stripe_ranges.iter().cloned());
            for (i, (slot, spec)) in slots.iter_mut().zip(specs).enumerate() {
                match stripe.slots.get(i) {
                    Some(created) => slot.put(created, &mut stripe_ranges.iter().cloned()),
                    None => {
                        let rows: usize = stripe_ranges.iter().map(|range| range.local.len()).sum();
                        let created = initial(spec, self.dtype, rows * slot.width());
                        slot.put(&created, &mut stripe_ranges.iter().cloned())
                    }
                }
            }
        });
        let named = |(slot, spec): (WholeBuffer, &SlotSpec)| Ok((spec.name.to_string(), slot.finish()?));
        let slots = slots.into_iter().zip(specs).map(named).collect::<Result<_>>()?;
        Ok(TableState { version, values: values.finish()?, slots })
    }

    /// Restores all values and slots atomically. The slots may be in any order.
    ///
    /// # Errors
    /// - [`Error::Shape`]: values or slots have a wrong shape.
    /// - [`Error::DType`]: values or slots have a wrong dtype.
    /// - [`Error::Slots`]: the slots are not those of the table's rule, which [`set_rule`](Table::set_rule)
    ///   must set first.
    ///
    /// If this fails, nothing has changed.
    pub fn restore(&self, values: &HostTensor, slots: &[(String, HostTensor)]) -> Result<()> {
        const OPERATION: &str = "restore";
        self.check_whole(OPERATION, values)?;
        let (specs, sorted) = self.sorted(slots)?;
        self.check_slots(OPERATION, &self.shape, specs, &sorted)?;
        let width = self.width();
        let done = self.stripes.write_all(|_, stripe, stripe_ranges| {
            let stripe_ranges: Vec<_> = stripe_ranges.collect();
            let part = |whole: &HostTensor, width: usize| {
                part(whole.buffer(), width, &mut stripe_ranges.iter().cloned())
            };
            stripe.values.write(Write::Assign, &part(values, width))?;
            let slots = specs.iter().zip(&sorted);
            stripe.slots = slots.map(|(spec, slot)| part(slot, slot_width(spec, width))).collect();
            Ok(())
        });
        self.changed();
        done
    }

    /// Returns values and slots of a range of rows, for tables that are too large to copy at once. Each row is in a
    /// state between two operations on the row. The only row of a scalar has index 0.
    ///
    /// # Errors
    /// - [`Error::Row`]: the table does not contain all of these rows.
    /// - [`Error::NoMemory`]: there is not enough memory for the result.
    pub fn state_rows(&self, rows: Range<usize>) -> Result<TableState> {
        self.check_range("state", &rows)?;
        let version = self.version();
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let width = self.width();
        let of_specs = specs.iter().map(|spec| slot_width(spec, width));
        let widths: Vec<usize> = std::iter::once(width).chain(of_specs).collect();
        self.require_memory(rows.len().saturating_mul(widths.iter().sum()))?;
        let mut parts: Vec<Buffer> =
            widths.iter().map(|width| Buffer::zeros(self.dtype, rows.len() * width)).collect();
        self.stripes.read_some(&rows, |stripe, stripe_ranges| {
            for (from, to) in stripe_ranges.filter_map(|stripe_range| within(&stripe_range, &rows)) {
                for ((i, part), width) in parts.iter_mut().enumerate().zip(&widths) {
                    let [from, to] = [&from, &to].map(|at| at.start * width..at.end * width);
                    match i.checked_sub(1).map(|slot| (stripe.slots.get(slot), specs.get(slot))) {
                        None => stripe.values.copy_to(from.clone(), part, to.clone()),
                        Some((Some(slot), _)) => copy(slot, from.clone(), part, to.clone()),
                        Some((None, Some(spec))) => {
                            copy(&initial(spec, self.dtype, to.len()), 0..to.len(), part, to.clone());
                        }
                        Some((None, None)) => {}
                    }
                }
            }
        });
        let mut shape = self.shape.clone();
        if let Some(height) = shape.first_mut() {
            *height = rows.len();
        }
        let mut parts = parts.into_iter();
        let values = parts.next().unwrap_or_else(|| Buffer::zeros(self.dtype, 0));
        let values = HostTensor::from_buffer(values, shape.clone())?;
        let named = specs.iter().zip(parts).map(|(spec, slot)| {
            Ok((spec.name.to_string(), HostTensor::from_buffer(slot, spec.shape.dims(&shape))?))
        });
        Ok(TableState { version, values, slots: named.collect::<Result<_>>()? })
    }

    /// Restores values and slots of consecutive rows, beginning with row `first`. Other rows do not change.
    ///
    /// # Errors
    /// Returns the errors of [`restore`](Self::restore), and:
    /// - [`Error::Row`]: the table does not contain all of these rows.
    pub fn restore_rows(
        &self,
        first: usize,
        values: &HostTensor,
        slots: &[(String, HostTensor)],
    ) -> Result<()> {
        const OPERATION: &str = "restore";
        let (rows, shape) = self.row_range(OPERATION, first, values)?;
        self.check(OPERATION, &shape, values)?;
        let (specs, sorted) = self.sorted(slots)?;
        self.check_slots(OPERATION, &shape, specs, &sorted)?;
        self.put_rows(&rows, Some(values), &sorted)
    }

    /// Restores slots of consecutive rows, beginning with row `first`, without changing values, which other threads may
    /// change concurrently. Does nothing if the rule has no slots.
    ///
    /// # Errors
    /// Returns the errors of [`restore_rows`](Self::restore_rows).
    pub fn restore_slots(&self, first: usize, slots: &[(String, HostTensor)]) -> Result<()> {
        const OPERATION: &str = "restore";
        let (specs, sorted) = self.sorted(slots)?;
        let Some(some) = sorted.first() else { return Ok(()) };
        let (rows, shape) = self.row_range(OPERATION, first, some)?;
        self.check_slots(OPERATION, &shape, specs, &sorted)?;
        self.put_rows(&rows, None, &sorted)
    }

    /// Returns the range of rows from `first` on that a tensor covers, and the shape that the tensor must have.
    fn row_range(
        &self,
        operation: &'static str,
        first: usize,
        rows: &HostTensor,
    ) -> Result<(Range<usize>, Vec<usize>)> {
        let count = if self.shape.is_empty() { 1 } else { rows.dims().first().copied().unwrap_or(0) };
        let rows = first..first.saturating_add(count);
        self.check_range(operation, &rows)?;
        let mut shape = self.shape.clone();
        if let Some(height) = shape.first_mut() {
            *height = count;
        }
        Ok((rows, shape))
    }

    /// Writes the slots of some rows, and their values if they are given.
    fn put_rows(
        &self,
        rows: &Range<usize>,
        values: Option<&HostTensor>,
        slots: &[&HostTensor],
    ) -> Result<()> {
        let width = self.width();
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let done = self.stripes.write_some(rows, |_, stripe, stripe_ranges| {
            let mut parts = stripe_ranges.filter_map(|stripe_range| within(&stripe_range, rows)).peekable();
            if parts.peek().is_some() {
                stripe.make_slots(specs, width);
            }
            for (to, from) in parts {
                let of = |at: &Range<usize>, width: usize| at.start * width..at.end * width;
                if let Some(values) = values {
                    stripe.values.copy_from(values.buffer(), of(&from, width), of(&to, width));
                }
                for ((slot, given), spec) in stripe.slots.iter_mut().zip(slots).zip(specs) {
                    let width = slot_width(spec, width);
                    copy(given.buffer(), of(&from, width), slot, of(&to, width));
                }
            }
            Ok(())
        });
        if values.is_some() {
            self.changed();
        }
        done
    }

    /// Checks the shapes and dtypes of slots, for rows of values with the given shape.
    fn check_slots(
        &self,
        operation: &'static str,
        shape: &[usize],
        specs: &[SlotSpec],
        slots: &[&HostTensor],
    ) -> Result<()> {
        let mut all = specs.iter().zip(slots);
        all.try_for_each(|(spec, slot)| self.check(operation, &spec.shape.dims(shape), slot))
    }

    /// Returns the specifications of the rule's slots, and the given slots in the same order.
    fn sorted<'a>(&self, slots: &'a [(String, HostTensor)]) -> Result<(&[SlotSpec], Vec<&'a HostTensor>)> {
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let of = |name: &str| slots.iter().find(|(found, _)| found == name).map(|(_, slot)| slot);
        let sorted: Option<Vec<&HostTensor>> = specs.iter().map(|spec| of(spec.name)).collect();
        let sorted = sorted.filter(|_| slots.len() == specs.len());
        sorted.map(|sorted| (specs, sorted)).ok_or_else(|| {
            let expected = specs.iter().map(|spec| spec.name).collect();
            let found = slots.iter().map(|(name, _)| name.clone()).collect();
            Error::Slots { table: self.name.clone(), expected, found }
        })
    }

    fn check_range(&self, operation: &'static str, rows: &Range<usize>) -> Result<()> {
        let all = self.rows();
        if rows.start <= rows.end && rows.end <= all {
            return Ok(());
        }
        let (table, row) = (self.name.clone(), rows.end.max(rows.start).saturating_sub(1));
        Err(Error::Row { operation, table, row, position: row.saturating_sub(rows.start), rows: all })
    }
}

/// Returns the part of a stripe's range that is in `rows`: its indices in the stripe, and those relative to the start
/// of `rows`. Returns `None` if there is no such part.
fn within(stripe_range: &StripeRange, rows: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let (start, end) = (stripe_range.rows.start.max(rows.start), stripe_range.rows.end.min(rows.end));
    let local = stripe_range.local.start + start.checked_sub(stripe_range.rows.start)?;
    (start < end).then(|| (local..local + (end - start), start - rows.start..end - rows.start))
}
