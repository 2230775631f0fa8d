//! A dynamic table as it is saved and restored.

use super::segment::{Number, Segment, stamp};
use super::{DynamicTable, Segments, elements, segment_of, with_segments};
use crate::lock::{read, write};
use crate::{Error, Result};
use distribute_tensor::HostTensor;
use std::collections::BTreeSet;
use std::sync::RwLock;

/// How often ids without a row came: the recent ones, and the older ones.
pub type WaitingCounts = [Vec<(i64, u32)>; 2];

/// Rows of some ids, with their slots. How often ids without a row came is not among it: see
/// [`DynamicTable::waiting_counts`].
#[derive(Clone, Debug, PartialEq)]
pub struct DynamicState {
    /// The ids, ascending.
    pub ids: Vec<i64>,
    /// The step in which each was last pushed to.
    pub used: Vec<u64>,
    /// A row of values for each id.
    pub values: HostTensor,
    /// The name of each slot of the table's rule, and a row of it for each id.
    pub slots: Vec<(String, HostTensor)>,
}

impl DynamicState {
    /// Those at some positions: what of it belongs to another shard, say.
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
    /// In how many parts [`state`](Self::state) gives the table out.
    pub fn parts(&self) -> usize {
        with_segments!(&self.segments, all => all.len())
    }

    /// A part of the table, as it is between two pushes: every id is in one of them. There are none beyond
    /// [`parts`](Self::parts).
    pub fn state(&self, part: usize) -> Result<DynamicState> {
        let slots = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let (width, names) = (self.width(), slots.iter().map(|slot| slot.name.to_string()));
        fn sorted<T: Number>(segment: Option<&RwLock<Segment<T>>>) -> Vec<(i64, u32, Vec<T>)> {
            let rows = |segment: &RwLock<Segment<T>>| {
                read(segment).entries().map(|(entry, row)| (entry.id, entry.used, row.to_vec())).collect()
            };
            let mut rows: Vec<_> = segment.map(rows).unwrap_or_default();
            rows.sort_unstable_by_key(|(id, ..)| *id);
            rows
        }
        with_segments!(&self.segments, all => {
            let rows = sorted(all.get(part));
            let shape = self.rows_shape(rows.len());
            let of = |slot: usize| {
                let mut all = Vec::with_capacity(rows.len() * width);
                rows.iter().for_each(|(.., row)| all.extend_from_slice(&row[slot * width..(slot + 1) * width]));
                HostTensor::new(all, shape.clone())
            };
            Ok(DynamicState {
                ids: rows.iter().map(|(id, ..)| *id).collect(),
                used: rows.iter().map(|(_, used, _)| u64::from(*used)).collect(),
                values: of(0)?,
                slots: names.enumerate().map(|(i, name)| Ok((name, of(1 + i)?))).collect::<Result<_>>()?,
            })
        })
    }

    /// Puts rows back, whichever shards they come from. An id that has a row gets another one. Where there may not be so many
    /// rows, those are left out that were not pushed to for the longest time; the result is how many.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Rows`], [`Error::IdTwice`], and [`Error::Slots`] unless the slots are those
    /// of the table's rule, which [`set_rule`](Self::set_rule) sets first; they may stand in any order.
    pub fn restore(&self, state: &DynamicState) -> Result<usize> {
        const OPERATION: &str = "restore";
        self.check_rows(OPERATION, &state.ids, &state.values)?;
        state.slots.iter().try_for_each(|(_, slot)| self.check_rows(OPERATION, &state.ids, slot))?;
        if state.used.len() != state.ids.len() {
            let (expected, found) = (state.ids.len(), state.used.len());
            return Err(Error::Rows { operation: OPERATION, expected, found });
        }
        let mut seen = BTreeSet::new();
        // As they are saved, they ascend.
        let ascend = state.ids.is_sorted_by(|a, b| a < b);
        if let Some(id) = state.ids.iter().find(|id| !ascend && !seen.insert(**id)) {
            return Err(Error::IdTwice { table: self.name.clone(), id: *id });
        }
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let of = |name: &str| state.slots.iter().find(|(found, _)| found == name).map(|(_, slot)| slot);
        let slots: Option<Vec<&HostTensor>> = specs.iter().map(|spec| of(spec.name)).collect();
        let Some(slots) = slots.filter(|_| state.slots.len() == specs.len()) else {
            let expected = specs.iter().map(|spec| spec.name).collect();
            let found = state.slots.iter().map(|(name, _)| name.clone()).collect();
            return Err(Error::Slots { table: self.name.clone(), expected, found });
        };
        Ok(with_segments!(&self.segments, all => self.restore_as(all, state, &slots)))
    }

    /// How often ids of a [part](Self::parts) came that have no row yet, for a server that goes on where it was. Other shards cannot
    /// use it: there, it is counted anew.
    pub fn waiting_counts(&self, part: usize) -> WaitingCounts {
        with_segments!(&self.segments, all => {
            all.get(part).map(|segment| read(segment).waiting_counts()).unwrap_or_default()
        })
    }

    /// Puts those counts back.
    pub fn restore_waiting(&self, part: usize, counts: &WaitingCounts) {
        with_segments!(&self.segments, all => {
            if let Some(segment) = all.get(part) {
                write(segment).restore_waiting(counts);
            }
        });
    }

    fn restore_as<T: Number>(
        &self,
        all: &[RwLock<Segment<T>>],
        state: &DynamicState,
        slots: &[&HostTensor],
    ) -> usize {
        let width = self.width();
        let parts: Vec<&[T]> =
            std::iter::once(&state.values).chain(slots.iter().copied()).map(elements).collect();
        // The last that were used come first, so that they are there if not all fit.
        let mut order: Vec<usize> = (0..state.ids.len()).collect();
        order.sort_unstable_by_key(|i| (std::cmp::Reverse(state.used[*i]), std::cmp::Reverse(state.ids[*i])));
        let mut left_out = 0;
        for i in order {
            let (id, used) = (state.ids[i], stamp(state.used[i]));
            let row = |part: &[T]| part[i * width..(i + 1) * width].to_vec();
            let row: Vec<T> = parts.iter().flat_map(|part| row(part)).collect();
            if !write(&all[segment_of(all.len(), id)]).put(id, used, &row) {
                left_out += 1;
            }
        }
        left_out
    }
}
