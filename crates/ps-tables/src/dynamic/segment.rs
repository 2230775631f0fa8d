//! A part of a dynamic table, under one lock.

use super::arena::{Arena, CHUNK};
use super::waiting::Waiting;
use super::{Limits, Pushed, hash};
use crate::Initializer;
use distribute_optim::{Float, Rule, RuleExt, SlotSpec, Step, UpdateError};
use distribute_tensor::Element;
use distribute_tensor::kernel::RowMerge;
use distribute_tensor::random::Drawn;
use hashbrown::HashTable;

/// An element of a dynamic table.
pub(super) trait Number: Float + Element + Drawn + Into<f64> {}

impl Number for f32 {}
impl Number for f64 {}

/// An id that has a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: i64,
    row: u32,
    /// The step of the last push. All steps from 2³² on are the same.
    pub(super) used: u32,
}

/// The update that a push applies to each of its ids.
pub(super) struct Update<'a, T> {
    pub(super) rule: &'a dyn Rule,
    pub(super) step: Step,
    pub(super) gradient: &'a [T],
    pub(super) initializer: &'a Initializer,
}

/// The rows of some ids, each with its slots after its values.
#[derive(Debug)]
pub(super) struct Segment<T> {
    index: HashTable<Entry>,
    rows: Arena<T>,
    width: usize,
    slots: Vec<SlotSpec>,
    waiting: Waiting,
    limits: Limits,
}

impl<T: Number> Segment<T> {
    pub(super) fn new(width: usize, limits: Limits) -> Self {
        let waiting = Waiting::new(limits.waiting);
        Self { index: HashTable::new(), rows: Arena::new(width), width, slots: Vec::new(), waiting, limits }
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
        self.index.allocation_size() + self.rows.bytes() + self.waiting.bytes()
    }

    /// Returns the number of rows for which memory would be allocated if these ids get rows.
    pub(super) fn chunk_rows(&self, ids: &[i64]) -> usize {
        let is_new = |id: &&i64| self.row(**id).is_none();
        let new = ids.iter().filter(is_new).count().saturating_sub(self.rows.room());
        new.next_multiple_of(CHUNK)
    }

    /// Returns the values and slots of an id, in this order.
    pub(super) fn row(&self, id: i64) -> Option<&[T]> {
        self.index.find(hash(id), |entry| entry.id == id).map(|entry| self.rows.row(entry.row))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Entry, &[T])> {
        self.index.iter().map(|entry| (entry, self.rows.row(entry.row)))
    }

    /// Creates slots for the existing rows, and drops the previous slots.
    pub(super) fn set_slots(&mut self, specs: &[SlotSpec]) {
        let mut rows = Arena::new(self.width * (1 + specs.len()));
        for entry in self.index.iter_mut() {
            // There are as many rows as before, so this does not fail.
            let Some(row) = rows.add() else { continue };
            let (values, slots) = rows.row_mut(row).split_at_mut(self.width);
            values.copy_from_slice(&self.rows.row(entry.row)[..self.width]);
            fill_slots(slots, self.width, specs);
            entry.row = row;
        }
        (self.rows, self.slots) = (rows, specs.to_vec());
    }

    /// Applies the gradients at `positions`, one for each of `ids`.
    pub(super) fn push(
        &mut self,
        ids: &[i64],
        positions: &[usize],
        update: &Update<'_, T>,
    ) -> Result<Pushed, UpdateError> {
        let now = stamp(update.step.number());
        let mut order: Vec<(i64, usize)> = ids.iter().copied().zip(positions.iter().copied()).collect();
        // Gradients of the same id are summed in the order of the request.
        order.sort_unstable();
        let mut pushed = Pushed::default();

        // The row of each id, and the ids that get a new row.
        let (mut found, mut new) = (Vec::with_capacity(order.len()), Vec::new());
        for id in order.chunk_by(|a, b| a.0 == b.0).filter_map(|same| same.first()).map(|(id, _)| *id) {
            let entry = self.index.find_mut(hash(id), |entry| entry.id == id);
            if let Some(entry) = entry {
                entry.used = now.max(entry.used);
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
            self.make_room(new.len(), |id| order.binary_search_by_key(&id, |(id, _)| *id).is_ok());
        for (id, at) in new {
            found[at] = self.insert(id, now, |values, slots, specs| {
                update.initializer.fill_row(id, values);
                fill_slots(slots, values.len(), specs);
            });
            match found[at] {
                Some(_) => pushed.made += 1,
                None => pushed.full += 1,
            }
        }

        // For the ids that have a row: the row, and the gradients that belong to it.
        let (mut rows, mut members, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for (same, row) in order.chunk_by(|a, b| a.0 == b.0).zip(found) {
            let Some(row) = row else { continue };
            members.extend(same.iter().map(|_| rows.len()));
            sources.extend(same.iter().map(|(_, position)| *position));
            rows.push(row);
        }
        pushed.rows = rows.len();
        self.update(&rows, &members, &sources, update)?;
        Ok(pushed)
    }

    /// Copies rows out, updates them all at once, and copies them back.
    fn update(
        &mut self,
        rows: &[u32],
        members: &[usize],
        sources: &[usize],
        update: &Update<'_, T>,
    ) -> Result<(), UpdateError> {
        let (width, len) = (self.width, rows.len() * self.width);
        let mut sums = vec![T::ZERO; len];
        RowMerge::new(members).sum_shared(sources, update.gradient, width, 0, &mut sums);
        let mut parts = vec![Vec::with_capacity(len); 1 + self.slots.len()];
        for row in rows {
            let row = self.rows.row(*row).chunks_exact(width.max(1));
            parts.iter_mut().zip(row).for_each(|(part, row)| part.extend_from_slice(row));
        }
        let Some((values, slots)) = parts.split_first_mut() else { return Ok(()) };
        let mut open: Vec<&mut [T]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        update.rule.update(update.step, values, &sums, &mut open)?;
        for (i, row) in rows.iter().enumerate() {
            let row = self.rows.row_mut(*row).chunks_exact_mut(width.max(1));
            parts
                .iter()
                .zip(row)
                .for_each(|(part, row)| row.copy_from_slice(&part[i * width..(i + 1) * width]));
        }
        Ok(())
    }

    /// Creates a row for an id that has none. `fill` receives its values, its slots and their specifications.
    /// Returns `None` if there is no room.
    pub(super) fn insert(
        &mut self,
        id: i64,
        used: u32,
        fill: impl FnOnce(&mut [T], &mut [T], &[SlotSpec]),
    ) -> Option<u32> {
        if self.limits.rows.is_some_and(|limit| self.index.len() >= limit) {
            return None;
        }
        let row = self.rows.add()?;
        let (values, slots) = self.rows.row_mut(row).split_at_mut(self.width);
        fill(values, slots, &self.slots);
        self.index.insert_unique(hash(id), Entry { id, row, used }, |entry| hash(entry.id));
        self.waiting.forget(id);
        Some(row)
    }

    /// Stores a row of values and slots. Returns false if there is no room.
    pub(super) fn put(&mut self, id: i64, used: u32, row: &[T]) -> bool {
        if let Some(entry) = self.index.find_mut(hash(id), |entry| entry.id == id) {
            entry.used = used;
            self.rows.row_mut(entry.row).copy_from_slice(row);
            return true;
        }
        self.insert(id, used, |values, slots, _| {
            let (of_values, of_slots) = row.split_at(values.len());
            values.copy_from_slice(of_values);
            slots.copy_from_slice(of_slots);
        })
        .is_some()
    }

    /// Stores a part of a row, from element `at` on, and keeps the rest. A new row has initial slots, and
    /// values from `initial`. Returns false if there is no room.
    pub(super) fn put_part(
        &mut self,
        id: i64,
        used: Option<u32>,
        at: usize,
        part: &[T],
        initial: impl FnOnce(&mut [T]),
    ) -> bool {
        let entry = self.index.find_mut(hash(id), |entry| entry.id == id).map(|entry| {
            entry.used = used.unwrap_or(entry.used);
            entry.row
        });
        let row = entry.or_else(|| {
            self.insert(id, used.unwrap_or(0), |values, slots, specs| {
                initial(values);
                fill_slots(slots, values.len(), specs);
            })
        });
        let Some(row) = row else { return false };
        self.rows.row_mut(row)[at..at + part.len()].copy_from_slice(part);
        true
    }

    /// Removes the rows of some ids, and returns their number.
    pub(super) fn remove(&mut self, gone: impl Fn(i64) -> bool) -> usize {
        self.evict(|entry| gone(entry.id))
    }

    /// Evicts the least recently used rows, so that `new` more fit; among equally old rows, the smallest ids.
    /// Rows that are `kept` are not evicted.
    pub(super) fn make_room(&mut self, new: usize, kept: impl Fn(i64) -> bool) -> usize {
        let Some(limit) = self.limits.rows else { return 0 };
        let excess = (self.index.len() + new).saturating_sub(limit);
        if excess == 0 {
            return 0;
        }
        let free = |entry: &&Entry| !kept(entry.id);
        let mut ages: Vec<(u32, i64)> = self.index.iter().filter(free).map(|e| (e.used, e.id)).collect();
        // Evicts more rows than necessary, so that not every new row has to compare all others.
        let evict = excess.max(limit / 16).min(ages.len());
        if evict == 0 {
            return 0;
        }
        let (_, last, _) = ages.select_nth_unstable(evict - 1);
        let last = *last;
        self.evict(|entry| (entry.used, entry.id) <= last && !kept(entry.id))
    }

    /// Evicts the rows that were last used before a step.
    pub(super) fn evict_unused_since(&mut self, step: u32) -> usize {
        self.evict(|entry| entry.used < step)
    }

    fn evict(&mut self, gone: impl Fn(&Entry) -> bool) -> usize {
        let mut evicted = 0;
        for entry in self.index.extract_if(|entry| gone(entry)) {
            self.rows.give_back(entry.row);
            evicted += 1;
        }
        evicted
    }
}

/// Converts a step to the form that entries store.
pub(super) fn stamp(step: u64) -> u32 {
    u32::try_from(step).unwrap_or(u32::MAX)
}

fn fill_slots<T: Drawn>(slots: &mut [T], width: usize, specs: &[SlotSpec]) {
    for (slot, spec) in slots.chunks_exact_mut(width.max(1)).zip(specs) {
        slot.fill(T::of_f64(spec.initial));
    }
}
