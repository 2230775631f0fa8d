//! The rows of a dynamic table that share one lock.

use super::arena::{Arena, CHUNK};
use super::uses::Uses;
use super::waiting::Waiting;
use super::{Limits, PushResult, hash};
use crate::Initializer;
use crate::halves::{narrow_nearest, store_row, widened};
use crate::table::slot_width;
use distribute_optim::{Float, Rule, RuleExt, SlotSpec, Step, StepRounding, UpdateError};
use distribute_tensor::Element;
use distribute_tensor::kernel::RowMerge;
use distribute_tensor::random::RandomElement;
use hashbrown::HashTable;
use std::ops::Range;

/// The element type of a dynamic table.
pub(super) trait Number: Float + Element + RandomElement + Into<f64> {}

impl Number for f32 {}
impl Number for f64 {}

/// The index entry of an id that has a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: i64,
    row: u32,
    pub(super) used: Uses,
}

/// The update that a push applies to its ids.
pub(super) struct Update<'a, T> {
    pub(super) rule: &'a dyn Rule,
    pub(super) step: Step,
    /// The rounding of values that are stored in bf16.
    pub(super) rounding: Option<StepRounding>,
    pub(super) gradient: &'a [T],
    pub(super) initializer: &'a Initializer,
}

/// The rows of some ids, which share a lock. Each row consists of its values, followed by its slots. Values in bf16 are
/// stored separately.
#[derive(Debug)]
pub(super) struct Segment<T> {
    index: HashTable<Entry>,
    rows: Arena<T>,
    /// The values of the rows, with the same indices, if they are stored in bf16.
    halves: Option<Arena<u16>>,
    width: usize,
    slots: Vec<SlotSpec>,
    waiting: Waiting,
    limits: Limits,
}

impl<T: Number> Segment<T> {
    pub(super) fn new(width: usize, limits: Limits, in_halves: bool) -> Self {
        let waiting = Waiting::new(limits.waiting);
        let halves = in_halves.then(|| Arena::new(width));
        let rows = Arena::new(if in_halves { 0 } else { width });
        Self { index: HashTable::new(), rows, halves, width, slots: Vec::new(), waiting, limits }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn waiting_counts(&self) -> [Vec<(i64, u32)>; 2] {
        self.waiting.counts()
    }

    pub(super) fn restore_waiting(&mut self, counts: &[Vec<(i64, u32)>; 2]) {
        self.waiting.restore(counts);
    }

    pub(super) fn bytes(&self) -> usize {
        let halves = self.halves.as_ref().map_or(0, Arena::bytes);
        self.index.allocation_size() + self.rows.bytes() + halves + self.waiting.bytes()
    }

    /// Returns the number of rows to allocate so that all given ids can have a row. An id that occurs twice counts
    /// twice.
    pub(super) fn chunk_rows(&self, ids: &[i64]) -> usize {
        let is_new = |id: &&i64| !self.has_row(**id);
        let new = ids.iter().filter(is_new).count().saturating_sub(self.rows.spare_rows());
        new.next_multiple_of(CHUNK)
    }

    /// Returns whether an id has a row.
    pub(super) fn has_row(&self, id: i64) -> bool {
        self.entry(id).is_some()
    }

    /// Writes the values of an id to `out`. Returns `false` if the id has no row.
    pub(super) fn read_row(&self, id: i64, out: &mut [T]) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        self.read_values(entry.row, out);
        true
    }

    /// Writes the values of a new row of an id to `out`.
    pub(super) fn initial_row(&self, initializer: &Initializer, id: i64, out: &mut [T]) {
        initializer.fill_row(id, out);
        if self.halves.is_some() {
            let mut halves = vec![0; out.len()];
            narrow_nearest(numbers(out), &mut halves);
            widen(&halves, out);
        }
    }

    /// Appends some columns of a row to `out`: all values, or columns of slots, which have the numbers after them.
    pub(super) fn append(&self, entry: &Entry, columns: Range<usize>, out: &mut Vec<T>) {
        let row = self.rows.row(entry.row);
        match &self.halves {
            None => out.extend_from_slice(&row[columns]),
            Some(_) if columns.end <= self.width => {
                let start = out.len();
                out.resize(start + self.width, T::ZERO);
                self.read_values(entry.row, &mut out[start..]);
            }
            Some(_) => out.extend_from_slice(&row[columns.start - self.width..columns.end - self.width]),
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.index.iter()
    }

    fn entry(&self, id: i64) -> Option<&Entry> {
        self.index.find(hash(id), |entry| entry.id == id)
    }

    fn read_values(&self, row: u32, out: &mut [T]) {
        match &self.halves {
            None => out.copy_from_slice(&self.rows.row(row)[..self.width]),
            Some(halves) => widen(halves.row(row), out),
        }
    }

    /// Replaces elements of a row, beginning with element `at` of its values and slots. Values that are stored in bf16
    /// are rounded to the nearest bf16 number.
    fn write_part(&mut self, row: u32, at: usize, part: &[T]) {
        let Some(halves) = &mut self.halves else {
            self.rows.row_mut(row)[at..at + part.len()].copy_from_slice(part);
            return;
        };
        let (values, slots) = part.split_at(self.width.saturating_sub(at).min(part.len()));
        if !values.is_empty() {
            narrow_nearest(numbers(values), &mut halves.row_mut(row)[at..at + values.len()]);
        }
        let at = at.saturating_sub(self.width);
        self.rows.row_mut(row)[at..at + slots.len()].copy_from_slice(slots);
    }

    /// Replaces the slots of all rows by new ones with initial values, as described by `specs`. Later rows get the same
    /// slots.
    pub(super) fn set_slots(&mut self, specs: &[SlotSpec]) {
        let of_slots: usize = specs.iter().map(|slot| slot_width(slot, self.width)).sum();
        let of_values = if self.halves.is_some() { 0 } else { self.width };
        let mut rows = Arena::new(of_values + of_slots);
        let mut halves = self.halves.as_ref().map(|_| Arena::new(self.width));
        for entry in self.index.iter_mut() {
            // There are as many rows as before, so this does not fail.
            let Some(row) = rows.add() else { continue };
            let (values, slots) = rows.row_mut(row).split_at_mut(of_values);
            values.copy_from_slice(&self.rows.row(entry.row)[..of_values]);
            fill_slots(slots, self.width, specs);
            if let (Some(halves), Some(before)) = (&mut halves, &self.halves)
                && halves.add().is_some()
            {
                halves.row_mut(row).copy_from_slice(before.row(entry.row));
            }
            entry.row = row;
        }
        (self.rows, self.halves, self.slots) = (rows, halves, specs.to_vec());
    }

    /// Applies gradients to the rows of `ids`. `positions` contains the index of each id's row in the gradient of
    /// `update`. Creates and evicts rows according to the limits, and counts the ids that do not get a row yet. If the
    /// rule fails, no values have changed, but rows have been created and evicted.
    pub(super) fn push(
        &mut self,
        ids: &[i64],
        positions: &[usize],
        update: &Update<'_, T>,
    ) -> Result<PushResult, UpdateError> {
        let (now, eviction) = (update.step.number(), self.limits.eviction);
        let mut order: Vec<(i64, usize)> = ids.iter().copied().zip(positions.iter().copied()).collect();
        // Gradients of the same id are summed in the order of the request.
        order.sort_unstable();
        let mut pushed = PushResult::default();

        // The row of each id, and the ids that get a new row.
        let (mut found, mut new) = (Vec::with_capacity(order.len()), Vec::new());
        for id in order.chunk_by(|a, b| a.0 == b.0).filter_map(|same| same.first()).map(|(id, _)| *id) {
            let entry = self.index.find_mut(hash(id), |entry| entry.id == id);
            if let Some(entry) = entry {
                entry.used = entry.used.again(eviction, now);
                found.push(Some(entry.row));
                continue;
            }
            if self.limits.admit_after <= 1 || self.waiting.count(id) >= self.limits.admit_after {
                new.push((id, found.len()));
            } else {
                pushed.waiting += 1;
            }
            found.push(None);
        }
        pushed.evicted =
            self.evict_for(new.len(), |id| order.binary_search_by_key(&id, |(id, _)| *id).is_ok());
        for (id, at) in new {
            found[at] = self.insert(id, Uses::first(eviction, now), |values, slots, specs| {
                update.initializer.fill_row(id, values);
                fill_slots(slots, values.len(), specs);
            });
            match found[at] {
                Some(_) => pushed.created += 1,
                None => pushed.full += 1,
            }
        }

        // For the ids that have a row: the row, and the gradients that belong to it.
        let (mut rows, mut members, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for (same, row) in order.chunk_by(|a, b| a.0 == b.0).zip(found) {
            let (Some(row), Some((id, _))) = (row, same.first()) else { continue };
            members.extend(same.iter().map(|_| rows.len()));
            sources.extend(same.iter().map(|(_, position)| *position));
            rows.push((*id, row));
        }
        pushed.rows = rows.len();
        self.update(&rows, &members, &sources, update)?;
        Ok(pushed)
    }

    /// Copies rows to a buffer, updates all of them in one call of the rule, and copies them back. `rows` contains the
    /// id and the index of each row. Row `rows[members[i]]` has the gradient at index `sources[i]`; several gradients
    /// of a row are summed. If the rule fails, no row has changed.
    fn update(
        &mut self,
        rows: &[(i64, u32)],
        members: &[usize],
        sources: &[usize],
        update: &Update<'_, T>,
    ) -> Result<(), UpdateError> {
        let (width, len) = (self.width, rows.len() * self.width);
        let mut sums = vec![T::ZERO; len];
        RowMerge::new(members).sum_shared(sources, update.gradient, width, 0, &mut sums);
        let of_slots = self.slots.iter().map(|slot| slot_width(slot, width));
        let widths: Vec<usize> = std::iter::once(width).chain(of_slots).collect();
        let mut parts: Vec<Vec<T>> =
            widths.iter().map(|width| Vec::with_capacity(rows.len() * width)).collect();
        // The parts of a row that are in the arena.
        let first = usize::from(self.halves.is_some());
        for (_, row) in rows {
            let mut rest = self.rows.row(*row);
            for (part, width) in parts.iter_mut().zip(&widths).skip(first) {
                part.extend_from_slice(rest.split_off(..*width).unwrap_or_default());
            }
        }
        let Some((values, slots)) = parts.split_first_mut() else { return Ok(()) };
        if let Some(halves) = &self.halves {
            values.resize(len, T::ZERO);
            for ((_, row), values) in rows.iter().zip(values.chunks_exact_mut(width.max(1))) {
                widen(halves.row(*row), values);
            }
        }
        let mut open: Vec<&mut [T]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        update.rule.update_shaped(update.step, &[rows.len(), width], values, &sums, &mut open)?;
        if let (Some(halves), Some(rounding)) = (&mut self.halves, update.rounding) {
            // INV-95
            for ((id, row), values) in rows.iter().zip(values.chunks_exact(width.max(1))) {
                store_row(rounding, id.cast_unsigned(), &mut numbers(values), halves.row_mut(*row));
            }
        }
        for (i, (_, row)) in rows.iter().enumerate() {
            let mut rest = self.rows.row_mut(*row);
            for (part, width) in parts.iter().zip(&widths).skip(first) {
                if let Some(place) = rest.split_off_mut(..*width) {
                    place.copy_from_slice(&part[i * width..(i + 1) * width]);
                }
            }
        }
        Ok(())
    }

    /// Creates a row for an id that has none, and removes the id's count. `fill` receives the row's values, its slots
    /// and their specifications. Returns the index of the row; `None` if the segment is full.
    pub(super) fn insert(
        &mut self,
        id: i64,
        used: Uses,
        fill: impl FnOnce(&mut [T], &mut [T], &[SlotSpec]),
    ) -> Option<u32> {
        if self.limits.rows.is_some_and(|limit| self.index.len() >= limit) {
            return None;
        }
        let row = self.rows.add()?;
        match &mut self.halves {
            None => {
                let (values, slots) = self.rows.row_mut(row).split_at_mut(self.width);
                fill(values, slots, &self.slots);
            }
            Some(halves) => {
                // Both have had the same rows added and removed, so this is the same index.
                halves.add()?;
                let mut values = vec![T::ZERO; self.width];
                fill(&mut values, self.rows.row_mut(row), &self.slots);
                narrow_nearest(numbers(&values), halves.row_mut(row));
            }
        }
        self.index.insert_unique(hash(id), Entry { id, row, used }, |entry| hash(entry.id));
        self.waiting.remove(id);
        Some(row)
    }

    /// Stores a row of values and slots, replacing the id's row if it has one. Returns `false` if the id has no row and
    /// the segment is full.
    pub(super) fn put(&mut self, id: i64, used: u64, row: &[T]) -> bool {
        let used = Uses::restored(self.limits.eviction, used);
        if let Some(entry) = self.index.find_mut(hash(id), |entry| entry.id == id) {
            entry.used = used;
            let place = entry.row;
            self.write_part(place, 0, row);
            return true;
        }
        self.insert(id, used, |values, slots, _| {
            let (of_values, of_slots) = row.split_at(values.len());
            values.copy_from_slice(of_values);
            slots.copy_from_slice(of_slots);
        })
        .is_some()
    }

    /// Stores a part of a row, beginning with element `at`, and leaves the rest unchanged. If `used` is `None`, the
    /// uses remain as well. A new row gets initial slots, and values from `initial`. Returns `false` if the id has no
    /// row and the segment is full.
    pub(super) fn put_part(
        &mut self,
        id: i64,
        used: Option<u64>,
        at: usize,
        part: &[T],
        initial: impl FnOnce(&mut [T]),
    ) -> bool {
        let used = used.map(|used| Uses::restored(self.limits.eviction, used));
        let entry = self.index.find_mut(hash(id), |entry| entry.id == id).map(|entry| {
            entry.used = used.unwrap_or(entry.used);
            entry.row
        });
        let row = entry.or_else(|| {
            self.insert(
                id,
                used.unwrap_or(Uses::restored(self.limits.eviction, 0)),
                |values, slots, specs| {
                    initial(values);
                    fill_slots(slots, values.len(), specs);
                },
            )
        });
        let Some(row) = row else { return false };
        self.write_part(row, at, part);
        true
    }

    /// Removes the rows for whose ids `gone` returns `true`, and returns their number.
    pub(super) fn remove(&mut self, gone: impl Fn(i64) -> bool) -> usize {
        self.evict(|entry| gone(entry.id))
    }

    /// Evicts rows so that `new` more rows fit, and returns the number of evicted rows.
    ///
    /// The rows with the smallest [`Uses`] are evicted first and, among equal ones, those with the smallest ids. If
    /// space is needed, evicts at least a sixteenth of the limit, or all rows that may be evicted. Rows for which
    /// `kept` returns `true` are never evicted, so there may still not be enough space.
    pub(super) fn evict_for(&mut self, new: usize, kept: impl Fn(i64) -> bool) -> usize {
        let Some(limit) = self.limits.rows else { return 0 };
        let excess = (self.index.len() + new).saturating_sub(limit);
        if excess == 0 {
            return 0;
        }
        let free = |entry: &&Entry| !kept(entry.id);
        let mut ages: Vec<(Uses, i64)> = self.index.iter().filter(free).map(|e| (e.used, e.id)).collect();
        // Evicts more rows than necessary, so that not every new row has to compare all others.
        let evict = excess.max(limit / 16).min(ages.len());
        if evict == 0 {
            return 0;
        }
        let (_, last, _) = ages.select_nth_unstable(evict - 1);
        let last = *last;
        self.evict(|entry| (entry.used, entry.id) <= last && !kept(entry.id))
    }

    /// Evicts the rows whose last push was before `step`, and returns their number.
    pub(super) fn evict_unused_since(&mut self, step: u64) -> usize {
        self.evict(|entry| entry.used.before(step))
    }

    fn evict(&mut self, gone: impl Fn(&Entry) -> bool) -> usize {
        let mut evicted = 0;
        for entry in self.index.extract_if(|entry| gone(entry)) {
            self.rows.free_row(entry.row);
            self.halves.iter_mut().for_each(|halves| halves.free_row(entry.row));
            evicted += 1;
        }
        evicted
    }
}

/// Converts values to `f32`. This is exact for `f32`, the only dtype that is stored in bf16.
fn numbers<T: Number>(values: &[T]) -> Vec<f32> {
    values.iter().map(|value| Into::<f64>::into(*value) as f32).collect()
}

/// Converts bf16 values to `T`, which is exact.
fn widen<T: Number>(halves: &[u16], values: &mut [T]) {
    for (value, half) in values.iter_mut().zip(widened(halves)) {
        *value = T::of_f64(half.into());
    }
}

/// Fills the slots of a row of `width` elements with their initial values.
fn fill_slots<T: RandomElement>(mut slots: &mut [T], width: usize, specs: &[SlotSpec]) {
    for spec in specs {
        let slot = slots.split_off_mut(..slot_width(spec, width)).unwrap_or_default();
        slot.fill(T::of_f64(spec.initial));
    }
}
