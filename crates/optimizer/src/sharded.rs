//! The update of variables of which each worker owns a range: it updates that, and gets the new values of the others.

use super::gradient_range::{GradientRange, Summands};
use super::in_place::{InPlace, LOCKED, UpdateRange, update};
use super::locked::{Locked, with_locked};
use super::operands::{Operands, Variable};
use super::owners::{Cut, Owners};
use super::progress::Change;
use super::reduction::settle;
use super::row_shard::RowShard;
use super::rules_of_step::Rules;
use super::shards::Shards;
use super::slots::Slots;
use super::threads::Threads;
use super::together::{Together, or_decline};
use super::touched::Touched;
use super::transform::Settled;
use super::{conversion, norms, sharding};
use bytes::Bytes;
use candle_core::{Storage, Var};
use distribute_base::internal::{Any, Number, operand};
use distribute_base::{Error, Result};
use distribute_collective::group::GroupCall;
use distribute_core::internal::failure;
use std::ops::Range;

/// New values of each variable begin where numbers of any type may.
const WIDEST: usize = size_of::<f64>();

/// Updates the elements that this worker owns, and writes what all workers have made of theirs.
///
/// New values are put into memory of their own, and no variable is written before those of all workers are there. Slots are
/// updated where they lie: a step that ends between the two leaves the state incomplete, which every later call that needs
/// it tells.
// INV-40
pub(super) struct Sharded<'a> {
    pub(super) in_place: InPlace<'a>,
    pub(super) shards: &'a Shards,
    /// What makes the step.
    pub(super) operation: &'static str,
}

/// A variable with a gradient on some replica, and which of its elements change.
struct Changing<'v, 'r> {
    variable: &'v Variable<'r>,
    width: usize,
    touched: Touched,
}

impl Changing<'_, '_> {
    /// How many bytes a worker sends of it that owns these elements.
    fn bytes(&self, owned: &Range<usize>) -> usize {
        (self.touched.count(owned) * self.width).next_multiple_of(WIDEST)
    }
}

impl Sharded<'_> {
    /// Reduces the gradients, transforms them, and applies the rules, each worker to the elements that it owns.
    ///
    /// # Errors
    /// [`Error::IncompleteState`] where it ends after the first slot has been written; no variable has changed then.
    pub(super) fn reduce_and_apply(
        &self,
        change: &Change<'_>,
        all: &Operands<'_>,
        together: &Together<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let Some(mut calling) = together.calling("its update") else {
            // Of one worker nothing is shared out.
            return self.in_place.reduce_and_apply(change, all, threads);
        };
        let made = self.make(change, all, &mut calling, threads);
        made.inspect_err(|error| or_decline(Some(calling), error)).map_err(|error| {
            if !change.is_incomplete() {
                return error;
            }
            sharding::ended(self.operation, change.number(), error)
        })
    }

    fn make(
        &self,
        change: &Change<'_>,
        all: &Operands<'_>,
        calling: &mut GroupCall<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let InPlace { rules, transforms, trained } = &self.in_place;
        let variables = all.variables();
        let settled = settle(transforms, trained, &variables, threads, |mine| {
            norms::of_all(calling, self.shards, &variables, mine)
        })?;
        let changing: Vec<_> = variables.iter().map(|variable| changing(variable, rules)).collect();
        let size = |worker| {
            changing
                .iter()
                .map(|each| each.bytes(&self.shards.of(each.variable.index, worker)))
                .sum::<usize>()
        };
        let mut new = calling.buffers().take(size(self.shards.world().worker()));
        change.begin_step();
        self.update(change, &changing, &settled, new.bytes_mut(), threads)?;
        let new =
            calling.all_gather_sized("its weights", new.freeze(), size).map_err(failure(self.operation))?;
        let _writing = trained.writing(changing.iter().map(|each| each.variable.index));
        self.write(&changing, new, threads)
    }

    /// Puts the new values of the elements that this worker owns into `new`.
    fn update(
        &self,
        change: &Change<'_>,
        changing: &[Changing<'_, '_>],
        settled: &Settled,
        mut new: &mut [u8],
        threads: &Threads<'_>,
    ) -> Result<()> {
        let values: Vec<_> =
            changing.iter().map(|each| each.variable.variable.storage_and_layout()).collect();
        let mut slots = change.slots();
        let mut slots: Vec<Option<&mut Slots>> = slots.iter_mut().map(Some).collect();
        let mut pieces = Vec::with_capacity(changing.len());
        for (each, (storage, layout)) in changing.iter().zip(&values) {
            let Changing { variable, touched, width } = each;
            let owned = self.shards.mine(variable.index);
            let place = new.split_off_mut(..each.bytes(&owned)).unwrap_or_default();
            let place = &mut place[..touched.count(&owned) * width];
            let other = || {
                let reason = format!("variable {} has changed its dtype or device", variable.name);
                Error::invalid(self.operation, reason)
            };
            let Storage::Cpu(storage) = &**storage else { return Err(other()) };
            let every_row = self.in_place.rules.of(variable.index).0.moves_absent_rows();
            pieces.push(match (variable.range(every_row, None)?, slots[variable.index].take()) {
                (Any::F32(gradient), Some(Slots::F32(slots))) => {
                    Any::F32(Piece::new(gradient, touched, owned, operand(storage, layout)?, place, slots))
                }
                (Any::F64(gradient), Some(Slots::F64(slots))) => {
                    Any::F64(Piece::new(gradient, touched, owned, operand(storage, layout)?, place, slots))
                }
                _ => return Err(other()),
            });
        }
        let rules = &self.in_place.rules;
        Owners::partition(threads.count, pieces).each(threads, |pieces| {
            pieces.into_iter().try_for_each(|piece| match piece {
                Any::F32(piece) => piece.update(rules, settled),
                Any::F64(piece) => piece.update(rules, settled),
            })
        })?;
        Ok(())
    }

    /// Writes the new values that each worker has sent.
    fn write(&self, changing: &[Changing<'_, '_>], mut new: Vec<Bytes>, threads: &Threads<'_>) -> Result<()> {
        for changing in changing.chunks(LOCKED) {
            let tensors: Vec<&Var> = changing.iter().map(|each| each.variable.variable).collect();
            with_locked(&tensors, |elements| {
                let mut pieces = Vec::with_capacity(changing.len() * new.len());
                for (each, elements) in changing.iter().zip(elements) {
                    let mut rest: &mut [u8] = match elements {
                        Locked::F32(elements) => bytemuck::cast_slice_mut(elements),
                        Locked::F64(elements) => bytemuck::cast_slice_mut(elements),
                    };
                    let Changing { variable, touched, width } = each;
                    for worker in self.shards.in_order(variable.index) {
                        let at = self.shards.of(variable.index, worker);
                        let values = rest.split_off_mut(..at.len() * width).unwrap_or_default();
                        let mut sent = new[worker].split_to(each.bytes(&at));
                        sent.truncate(touched.count(&at) * width);
                        pieces.push(Written { values, at, touched, width: *width, new: sent });
                    }
                }
                Owners::partition(threads.count, pieces).each(threads, |pieces| {
                    pieces.into_iter().for_each(Written::write);
                    Ok(())
                })?;
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Which elements of a variable change.
fn changing<'v, 'r>(variable: &'v Variable<'r>, rules: &Rules<'_>) -> Changing<'v, 'r> {
    let every_row = rules.of(variable.index).0.moves_absent_rows();
    let touched = match variable.rows().filter(|_| !every_row) {
        Some(rows) => Touched::Rows(rows, conversion::row_len(variable.variable)),
        None => Touched::All,
    };
    Changing { variable, touched, width: variable.variable.dtype().size_in_bytes() }
}

/// Owned elements of a variable that are to be updated.
enum Piece<'a, F> {
    Dense(UpdateRange<'a, F>),
    Rows(RowShard<'a, F>),
}

impl<'a, F: Number> Piece<'a, F> {
    /// `values` are those of the whole variable, and `new` is where those go that change.
    fn new(
        gradient: GradientRange<'a, F>,
        touched: &'a Touched,
        owned: Range<usize>,
        values: &'a [F],
        new: &'a mut [u8],
        slots: &'a mut [Vec<F>],
    ) -> Self {
        let (old, new) = (&values[owned.clone()], bytemuck::cast_slice_mut(new));
        match gradient.summands {
            Summands::Dense(_) => Piece::Dense(UpdateRange::new(new, slots, gradient).from(old)),
            Summands::Rows(rows) => {
                let rows = (rows, gradient.weights);
                Piece::Rows(RowShard::new(gradient.variable, rows, owned, touched, (old, new), slots))
            }
        }
    }

    fn update(self, rules: &Rules<'_>, settled: &Settled) -> Result<()> {
        match self {
            Piece::Dense(range) => update(range, rules, settled)?,
            Piece::Rows(rows) => {
                let (rule, step) = rules.of(rows.variable);
                rows.update(rule, step, settled)?
            }
        }
        Ok(())
    }
}

impl<F: Number> Cut for Piece<'_, F> {
    fn len(&self) -> usize {
        match self {
            Piece::Dense(range) => range.len(),
            Piece::Rows(rows) => rows.len(),
        }
    }

    fn cut(&mut self, len: usize) -> Self {
        match self {
            Piece::Dense(range) => Piece::Dense(range.cut(len)),
            Piece::Rows(rows) => Piece::Rows(rows.cut(len)),
        }
    }
}

/// Elements of a variable, as bytes, and the new values of those that change.
struct Written<'a> {
    values: &'a mut [u8],
    /// Which elements.
    at: Range<usize>,
    touched: &'a Touched,
    /// The bytes of an element.
    width: usize,
    new: Bytes,
}

impl Written<'_> {
    fn write(mut self) {
        for span in self.touched.spans(&self.at) {
            let place = (span.start - self.at.start) * self.width..(span.end - self.at.start) * self.width;
            let new = self.new.split_to(place.len());
            self.values[place].copy_from_slice(&new);
        }
    }
}

impl Cut for Written<'_> {
    fn len(&self) -> usize {
        self.at.len()
    }

    fn cut(&mut self, len: usize) -> Self {
        let at = self.at.start..self.at.end.min(self.at.start + len);
        self.at.start = at.end;
        let values = self.values.split_off_mut(..at.len() * self.width).unwrap_or_default();
        let new = self.new.split_to(self.touched.count(&at) * self.width);
        Self { values, new, touched: self.touched, width: self.width, at }
    }
}

#[cfg(test)]
mod tests;
