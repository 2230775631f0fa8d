//! Saving and restoring a table: consistent values and slots.

use super::Table;
use super::layout::Stretch;
use super::read::Whole;
use super::stripes::initial;
use super::write::part;
use crate::{Error, Result};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{Element, HostTensor, Write, with_buffer};
use std::ops::Range;

/// Values and slots of the same moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TableState {
    /// The table's version.
    pub version: u64,
    /// The values.
    pub values: HostTensor,
    /// The name of each slot of the table's rule, and its contents, in the shape of the values.
    pub slots: Vec<(String, HostTensor)>,
}

impl Table {
    /// Returns values and slots, as they are between two pushes of the whole table.
    pub fn state(&self) -> Result<TableState> {
        let version = self.version();
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let mut values = Whole::new(self)?;
        let mut slots: Vec<Whole> = specs.iter().map(|_| Whole::new(self)).collect::<Result<_>>()?;
        self.stripes.read_all(|stripe, stretches| {
            let stretches: Vec<_> = stretches.collect();
            values.put(&stripe.values, &mut stretches.iter().cloned());
            for (i, (slot, spec)) in slots.iter_mut().zip(specs).enumerate() {
                match stripe.slots.get(i) {
                    Some(made) => slot.put(made, &mut stretches.iter().cloned()),
                    None => slot.put(&initial(&stripe.values, spec.initial), &mut stretches.iter().cloned()),
                }
            }
        });
        let named =
            |(slot, spec): (Whole, &distribute_optim::SlotSpec)| Ok((spec.name.to_string(), slot.finish()?));
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
    /// After an error nothing has changed.
    pub fn restore(&self, values: &HostTensor, slots: &[(String, HostTensor)]) -> Result<()> {
        const OPERATION: &str = "restore";
        self.check_whole(OPERATION, values)?;
        slots.iter().try_for_each(|(_, slot)| self.check_whole(OPERATION, slot))?;
        let sorted = self.sorted(slots)?;
        let width = self.width();
        let done = self.stripes.write_all(|_, stripe, stretches| {
            let stretches: Vec<_> = stretches.collect();
            let part = |whole: &HostTensor| part(whole.buffer(), width, &mut stretches.iter().cloned());
            stripe.values.write(Write::Assign, &part(values))?;
            stripe.slots = sorted.iter().map(|slot| part(slot)).collect();
            Ok(())
        });
        self.changed();
        done
    }

    /// Returns values and slots of some rows, each row as it is between two operations on it. The value of a
    /// scalar is row 0. This is for tables that are too large to be copied at once.
    ///
    /// # Errors
    /// - [`Error::Row`]: there are no such rows.
    pub fn state_rows(&self, rows: Range<usize>) -> Result<TableState> {
        self.check_range("state", &rows)?;
        let version = self.version();
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let (width, len) = (self.width(), rows.len() * self.width());
        self.require_memory(len.saturating_mul(1 + specs.len()))?;
        let mut parts = vec![Buffer::zeros(self.dtype, len); 1 + specs.len()];
        self.stripes.read_all(|stripe, stretches| {
            for (from, to) in stretches.filter_map(|stretch| within(&stretch, &rows)) {
                let [from, to] = [from, to].map(|at| at.start * width..at.end * width);
                for (i, part) in parts.iter_mut().enumerate() {
                    match i.checked_sub(1).map(|slot| (stripe.slots.get(slot), specs.get(slot))) {
                        None => copy(&stripe.values, from.clone(), part, to.clone()),
                        Some((Some(slot), _)) => copy(slot, from.clone(), part, to.clone()),
                        Some((None, spec)) => {
                            let value = spec.map_or(0., |spec| spec.initial);
                            let slot = initial(&Buffer::zeros(self.dtype, to.len()), value);
                            copy(&slot, 0..to.len(), part, to.clone());
                        }
                    }
                }
            }
        });
        let mut shape = self.shape.clone();
        if let Some(height) = shape.first_mut() {
            *height = rows.len();
        }
        let mut parts = parts.into_iter().map(|part| HostTensor::from_buffer(part, shape.clone()));
        let values = parts.next().unwrap_or_else(|| HostTensor::zeros(self.dtype, shape.clone()))?;
        let named = specs.iter().zip(parts).map(|(spec, slot)| Ok((spec.name.to_string(), slot?)));
        Ok(TableState { version, values, slots: named.collect::<Result<_>>()? })
    }

    /// Restores values and slots of some rows, from row `first` on, and keeps the others.
    ///
    /// # Errors
    /// Returns the errors of [`restore`](Self::restore), and:
    /// - [`Error::Row`]: there are no such rows.
    pub fn restore_rows(
        &self,
        first: usize,
        values: &HostTensor,
        slots: &[(String, HostTensor)],
    ) -> Result<()> {
        const OPERATION: &str = "restore";
        let (rows, shape) = self.stretch(OPERATION, first, values)?;
        self.check(OPERATION, &shape, values)?;
        slots.iter().try_for_each(|(_, slot)| self.check(OPERATION, &shape, slot))?;
        self.put_rows(&rows, Some(values), &self.sorted(slots)?)
    }

    /// Restores slots of some rows, from row `first` on, and keeps the values, also those that other threads
    /// write at the same time.
    ///
    /// # Errors
    /// Returns the errors of [`restore_rows`](Self::restore_rows).
    pub fn restore_slots(&self, first: usize, slots: &[(String, HostTensor)]) -> Result<()> {
        const OPERATION: &str = "restore";
        let sorted = self.sorted(slots)?;
        let Some(some) = sorted.first() else { return Ok(()) };
        let (rows, shape) = self.stretch(OPERATION, first, some)?;
        slots.iter().try_for_each(|(_, slot)| self.check(OPERATION, &shape, slot))?;
        self.put_rows(&rows, None, &sorted)
    }

    /// Returns the rows from `first` on that correspond to a tensor, and the shape that the tensor must have.
    fn stretch(
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

    /// Writes the slots of some rows, and their values if given.
    fn put_rows(
        &self,
        rows: &Range<usize>,
        values: Option<&HostTensor>,
        slots: &[&HostTensor],
    ) -> Result<()> {
        let width = self.width();
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let done = self.stripes.write_all(|_, stripe, stretches| {
            let mut parts = stretches.filter_map(|stretch| within(&stretch, rows)).peekable();
            if parts.peek().is_some() {
                stripe.make_slots(specs);
            }
            for (to, from) in parts {
                let [from, to] = [from, to].map(|at| at.start * width..at.end * width);
                if let Some(values) = values {
                    copy(values.buffer(), from.clone(), &mut stripe.values, to.clone());
                }
                for (slot, given) in stripe.slots.iter_mut().zip(slots) {
                    copy(given.buffer(), from.clone(), slot, to.clone());
                }
            }
            Ok(())
        });
        if values.is_some() {
            self.changed();
        }
        done
    }

    /// Returns the slots in the order of the rule.
    fn sorted<'a>(&self, slots: &'a [(String, HostTensor)]) -> Result<Vec<&'a HostTensor>> {
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let of = |name: &str| slots.iter().find(|(found, _)| found == name).map(|(_, slot)| slot);
        let sorted: Option<Vec<&HostTensor>> = specs.iter().map(|spec| of(spec.name)).collect();
        sorted.filter(|_| slots.len() == specs.len()).ok_or_else(|| {
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

/// Returns the intersection of a stretch with some rows: the rows of the stripe, and their indices among
/// `rows`.
fn within(stretch: &Stretch, rows: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let (start, end) = (stretch.rows.start.max(rows.start), stretch.rows.end.min(rows.end));
    let local = stretch.local.start + start.checked_sub(stretch.rows.start)?;
    (start < end).then(|| (local..local + (end - start), start - rows.start..end - rows.start))
}

/// Copies elements from one buffer to another of the same dtype.
fn copy(from: &Buffer, from_at: Range<usize>, to: &mut Buffer, to_at: Range<usize>) {
    fn like<'a, T: Element>(_: &[T], buffer: &'a Buffer) -> &'a [T] {
        T::slice(buffer).unwrap_or_default()
    }
    with_buffer!(to, to => {
        let from = like(to, from);
        to[to_at].clone_from_slice(&from[from_at]);
    })
}
