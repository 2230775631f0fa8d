//! Saving and restoring a dynamic table.

use super::segment::{Number, Segment};
use super::{DynamicTable, Segments, elements, segment_of, with_segments};
use crate::table::slot_width;
use crate::{Error, Result};
use distribute_optim::SlotSpec;
use distribute_tensor::HostTensor;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// The ids without a row, and the number of occurrences of each: first those that were counted recently, then those
/// that were counted before.
pub type WaitingCounts = [Vec<(i64, u32)>; 2];

/// The rows and slots of some ids, for saving. The counts of ids without a row are separate: see
/// [`DynamicTable::waiting_counts`].
#[derive(Clone, Debug, PartialEq)]
pub struct DynamicState {
    /// The ids, in ascending order.
    pub ids: Vec<i64>,
    /// The step of each id's last push. With [`Eviction::LeastFrequent`](super::Eviction::LeastFrequent), the upper 32
    /// bits contain the number of pushes.
    pub used: Vec<u64>,
    /// The values, one row for each id.
    pub values: HostTensor,
    /// The slots of the table's rule by name, each with one row for each id.
    pub slots: Vec<(String, HostTensor)>,
}

/// A column of the rows of a dynamic table that is read alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateColumn {
    /// Only the [uses](DynamicState::used), which are read with each column.
    Uses,
    /// The values.
    Values,
    /// The slot with this name.
    Slot(String),
}

impl DynamicState {
    /// Returns the entries at the given positions, for example the entries that belong to a different shard.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: a position is out of range.
    pub fn take(&self, positions: &[usize]) -> Result<Self> {
        Ok(Self {
            values: self.values.take_rows(positions)?,
            slots: self
                .slots
                .iter()
                .map(|(name, slot)| Ok((name.clone(), slot.take_rows(positions)?)))
                .collect::<Result<_>>()?,
            ids: positions.iter().map(|at| self.ids[*at]).collect(),
            used: positions.iter().map(|at| self.used[*at]).collect(),
        })
    }
}

impl DynamicTable {
    /// Returns the number of parts into which [`state`](Self::state) divides the table.
    pub fn parts(&self) -> usize {
        with_segments!(&self.segments, all => all.len())
    }

    /// Returns a part of the table, in a state between two pushes. Every id is in exactly one part. The state is empty
    /// if `part` is not less than [`parts`](Self::parts).
    pub fn state(&self, part: usize) -> Result<DynamicState> {
        self.select(part, true, |_| true)
    }

    /// Acts like [`state`](Self::state), for the ids and uses of a part, and one column. Without
    /// [`StateColumn::Values`], the values have a width of 0.
    ///
    /// # Errors
    /// - [`Error::Slots`]: the table's rule does not have this slot.
    pub fn column(&self, part: usize, column: &StateColumn) -> Result<DynamicState> {
        match column {
            StateColumn::Uses => self.select(part, false, |_| false),
            StateColumn::Values => self.select(part, true, |_| false),
            StateColumn::Slot(name) => {
                let slots = self.rule.get().map_or(&[][..], |bound| &bound.slots);
                if !slots.iter().any(|slot| slot.name == name.as_str()) {
                    let expected = slots.iter().map(|slot| slot.name).collect();
                    let found = vec![name.clone()];
                    return Err(Error::Slots { table: self.name.clone(), expected, found });
                }
                self.select(part, false, |slot| slot.name == name.as_str())
            }
        }
    }

    fn select(&self, part: usize, values: bool, of: impl Fn(&SlotSpec) -> bool) -> Result<DynamicState> {
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let width = self.width();
        with_segments!(&self.segments, all => {
            let segment = all.get(part).map(RwLock::read);
            let mut entries: Vec<_> = segment.iter().flat_map(|segment| segment.entries()).collect();
            entries.sort_unstable_by_key(|entry| entry.id);
            let column = |columns: Range<usize>, shape: Vec<usize>| {
                let mut all = Vec::with_capacity(entries.len() * columns.len());
                if let Some(segment) = &segment {
                    entries.iter().for_each(|entry| segment.append(entry, columns.clone(), &mut all));
                }
                HostTensor::new(all, shape)
            };
            let shape = self.rows_shape(entries.len());
            let (mut slots, mut end) = (Vec::new(), width);
            for spec in specs {
                let start = end;
                end += slot_width(spec, width);
                if of(spec) {
                    slots.push((spec.name.to_string(), column(start..end, spec.shape.dims(&shape))?));
                }
            }
            let none = || HostTensor::zeros(self.dtype(), [entries.len(), 0]);
            let values = if values { column(0..width, shape)? } else { none()? };
            Ok(DynamicState {
                ids: entries.iter().map(|entry| entry.id).collect(),
                used: entries.iter().map(|entry| entry.used.saved()).collect(),
                values,
                slots,
            })
        })
    }

    /// Restores rows, which may come from any shards. Existing rows of these ids are replaced, and no other row is
    /// evicted. If there is not enough space, omits the rows that would be evicted first. Returns the number of omitted
    /// rows.
    ///
    /// # Errors
    /// - [`Error::Shape`]: values or slots have a wrong shape.
    /// - [`Error::DType`]: values or slots have a wrong dtype.
    /// - [`Error::Rows`]: the number of elements of `used` differs from the number of ids.
    /// - [`Error::IdTwice`]: an id occurs twice.
    /// - [`Error::Slots`]: the slots are not those of the table's rule, which [`set_rule`](Self::set_rule) must
    ///   set first. They may be in any order.
    pub fn restore(&self, state: &DynamicState) -> Result<usize> {
        const OPERATION: &str = "restore";
        self.check_rows(OPERATION, &state.ids, &state.values)?;
        let slots = self.checked(OPERATION, &state.ids, &state.slots)?;
        self.check_used(OPERATION, &state.ids, &state.used)?;
        let parts: Vec<&HostTensor> = std::iter::once(&state.values).chain(slots).collect();
        // The rows that are evicted last come first, so that they are kept if not all fit.
        let mut order: Vec<usize> = (0..state.ids.len()).collect();
        order.sort_unstable_by_key(|i| (Reverse(state.used[*i]), Reverse(state.ids[*i])));
        Ok(with_segments!(&self.segments, all => {
            self.put(all, &state.ids, &order, &parts, |segment, i, row| {
                segment.put(state.ids[i], state.used[i], row)
            })
        }))
    }

    /// Restores the slots of some ids without changing their values, which other threads may change concurrently. An id
    /// without a row gets a row with its initial values. Returns the number of rows that were not created because the
    /// table is full.
    ///
    /// # Errors
    /// Returns the errors of [`restore`](Self::restore), except [`Error::Rows`].
    pub fn restore_slots(&self, ids: &[i64], slots: &[(String, HostTensor)]) -> Result<usize> {
        const OPERATION: &str = "restore";
        let parts = self.checked(OPERATION, ids, slots)?;
        let (order, width) = ((0..ids.len()).collect::<Vec<_>>(), self.width());
        Ok(with_segments!(&self.segments, all => {
            self.put(all, ids, &order, &parts, |segment, i, row| {
                let initial = |values: &mut [_]| self.initializer.fill_row(ids[i], values);
                segment.put_part(ids[i], None, width, row, initial)
            })
        }))
    }

    /// Restores the values of some ids without changing their slots. `used` contains the [uses](DynamicState::used) of
    /// each id. New rows get initial slots. Returns the number of rows that were not created because the table is full.
    ///
    /// # Errors
    /// Returns the errors of [`restore`](Self::restore), except [`Error::Slots`].
    pub fn restore_values(&self, ids: &[i64], used: &[u64], values: &HostTensor) -> Result<usize> {
        const OPERATION: &str = "restore";
        self.check_rows(OPERATION, ids, values)?;
        self.check_unique(ids)?;
        self.check_used(OPERATION, ids, used)?;
        let order: Vec<usize> = (0..ids.len()).collect();
        Ok(with_segments!(&self.segments, all => {
            self.put(all, ids, &order, &[values], |segment, i, row| {
                segment.put_part(ids[i], Some(used[i]), 0, row, |_| {})
            })
        }))
    }

    /// Removes the rows whose ids are in an inclusive range but not in `ids`. Returns their number.
    pub fn keep(&self, (first, last): (i64, i64), ids: &[i64]) -> usize {
        let kept: HashSet<i64> = ids.iter().copied().collect();
        let gone = |id: i64| (first..=last).contains(&id) && !kept.contains(&id);
        with_segments!(&self.segments, all => all.iter().map(|segment| segment.write().remove(gone)).sum())
    }

    /// Returns the counts of ids without a row in a [part](Self::parts), so that a restarted server can continue with
    /// them. Other shards cannot use these counts. If there is no such part, the counts are empty.
    pub fn waiting_counts(&self, part: usize) -> WaitingCounts {
        with_segments!(&self.segments, all => {
            all.get(part).map(|segment| segment.read().waiting_counts()).unwrap_or_default()
        })
    }

    /// Replaces the counts of ids without a row in a part. Does nothing if there is no such part.
    pub fn restore_waiting(&self, part: usize, counts: &WaitingCounts) {
        with_segments!(&self.segments, all => {
            if let Some(segment) = all.get(part) {
                segment.write().restore_waiting(counts);
            }
        });
    }

    /// Stores rows in the order `order`, by calling `put` for each. A row is the concatenation of the id's rows in all
    /// `parts`, which are the values and the slots. Returns the number of rows for which `put` returns `false`, because
    /// the segment is full.
    fn put<T: Number>(
        &self,
        all: &[RwLock<Segment<T>>],
        ids: &[i64],
        order: &[usize],
        parts: &[&HostTensor],
        put: impl Fn(&mut Segment<T>, usize, &[T]) -> bool,
    ) -> usize {
        let parts: Vec<&[T]> = parts.iter().copied().map(elements).collect();
        let mut left_out = 0;
        for i in order {
            let row = |part: &[T]| {
                let width = part.len() / ids.len();
                part[i * width..(i + 1) * width].to_vec()
            };
            let row: Vec<T> = parts.iter().flat_map(|part| row(part)).collect();
            if !put(&mut all[segment_of(all.len(), ids[*i])].write(), *i, &row) {
                left_out += 1;
            }
        }
        left_out
    }

    /// Returns the slots in the order of the rule, after checking that they are complete, that their shapes and dtypes
    /// are right, and that ids are unique.
    fn checked<'a>(
        &self,
        operation: &'static str,
        ids: &[i64],
        slots: &'a [(String, HostTensor)],
    ) -> Result<Vec<&'a HostTensor>> {
        self.check_unique(ids)?;
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let of = |name: &str| slots.iter().find(|(found, _)| found == name).map(|(_, slot)| slot);
        let sorted: Option<Vec<&HostTensor>> = specs.iter().map(|spec| of(spec.name)).collect();
        let sorted = sorted.filter(|_| slots.len() == specs.len()).ok_or_else(|| {
            let expected = specs.iter().map(|spec| spec.name).collect();
            let found = slots.iter().map(|(name, _)| name.clone()).collect();
            Error::Slots { table: self.name.clone(), expected, found }
        })?;
        let shape = self.rows_shape(ids.len());
        let mut all = specs.iter().zip(&sorted);
        all.try_for_each(|(spec, slot)| self.check(operation, spec.shape.dims(&shape), slot))?;
        Ok(sorted)
    }

    fn check_used(&self, operation: &'static str, ids: &[i64], used: &[u64]) -> Result<()> {
        let (expected, found) = (ids.len(), used.len());
        if expected == found { Ok(()) } else { Err(Error::Rows { operation, expected, found }) }
    }

    fn check_unique(&self, ids: &[i64]) -> Result<()> {
        // Saved ids are in ascending order.
        let ascend = ids.is_sorted_by(|a, b| a < b);
        let mut seen = BTreeSet::new();
        match ids.iter().find(|id| !ascend && !seen.insert(**id)) {
            Some(id) => Err(Error::IdTwice { table: self.name.clone(), id: *id }),
            None => Ok(()),
        }
    }
}
