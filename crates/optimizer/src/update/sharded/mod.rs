//! The update of variables that are partitioned over workers. Each worker computes the new values of its range in
//! separate memory. The variables are written after the new values of all workers have arrived.
//!
//! | module | contents |
//! |---|---|
//! | `rows` | the rows of a worker's range |
//! | `norms` | sums of squares over all workers |
//! | `gather` | complete slots, assembled from the ranges of all workers |
//! | `own_rows` | the rows of slots that each worker writes to a checkpoint itself |
//! | `replicated` | the update if each worker has a copy of the slots of the one before it |
//! | `transfer` | the shards of lost workers, sent from their copies |

// - **INV-40** If workers shard an optimizer's state, each element of a variable has one assignee, and no variable
//   is written before the new values of all assignees have arrived. If a step ends after slots have changed and
//   before that, every later call that needs them returns this error, until they are restored. Tests:
//   `decisions/src/partition.rs`, `optimizer/src/update/sharded/tests.rs`, `clusters/multi_worker/sharded.rs`.

mod gather;
mod norms;
mod own_rows;
mod replicated;
mod rows;
mod transfer;

use crate::Inner;
use crate::groups::Rules;
use crate::parameters::Parameters;
use crate::progress::{Change, Incomplete};
use crate::reduce::operands::{Operands, VariableOperands};
use crate::reduce::range::{GradientRange, Summands};
use crate::reduce::resolve;
use crate::reduce::split::{Splittable, WorkSplit};
use crate::slots::Slots;
use crate::sync::{Threads, abort_on};
use crate::transform::Transform;
use crate::update::local::{InPlaceUpdater, UpdateRange, update};
use crate::update::locked::{LOCKED, Locked, with_locked};
use crate::update::rounding;
use crate::update::touched::Touched;
use crate::update::{Backend, Pass, Saved, Update, When, new_slots};
use bytes::Bytes;
use candle_core::{Storage, Tensor, Var};
use distribute_base::internal::{EitherFloat, Number, operand};
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_collective::group::GroupCall;
use distribute_core::internal::failure;
use distribute_decisions::internal::{BLOCK, Partition};
use distribute_optim::{Rule, SlotSpec, Unit};
use replicated::ShardGradients;
use rows::RowShard;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

/// The size in bytes to which the new values of each variable are padded, so that numbers of any type are aligned.
const WIDEST: usize = size_of::<f64>();

/// A backend that updates the elements assigned to this worker, and writes the new values of all workers.
///
/// New values are computed in separate memory, and no variable is written before the new values of all workers have
/// arrived. Slots are updated in place. If a step fails after the update of the slots has begun, the state is
/// incomplete, and every later call that needs the state returns an error.
// INV-40
#[derive(Debug)]
pub(crate) struct Sharded {
    partition: Arc<Partition>,
}

impl Backend for Sharded {
    fn is_one_pass(&self, _optimizer: &Inner) -> bool {
        true
    }

    /// Reduces the gradients, and applies the rules to the elements assigned to this worker.
    ///
    /// # Errors
    /// - [`Error::IncompleteState`]: the step failed after the update of the slots had begun. No variable has changed,
    ///   unless writing the variables failed.
    fn reduce_and_apply(&self, update: &Update<'_>, pass: &Pass<'_>) -> Result<()> {
        let Pass { change, operands, sync, threads, .. } = pass;
        let Some(mut calling) = sync.group_call("its update") else {
            // A single worker shards nothing.
            return InPlaceUpdater::new(update, update.transforms)
                .reduce_and_apply(change, operands, threads);
        };
        let made = if self.replicated().is_some() {
            self.update_replicated(update, change, operands, &mut calling, threads)
        } else {
            self.update_and_exchange(update, change, operands, &mut calling, threads)
        };
        made.inspect_err(|error| abort_on(Some(calling), error)).map_err(|error| {
            if !change.is_incomplete() {
                return error;
            }
            Incomplete::with_partition(&self.partition).interrupted(update.operation, change.number(), error)
        })
    }

    fn slot(
        &self,
        optimizer: &Inner,
        variable: usize,
        slot: usize,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        self.slot_of_all(optimizer, variable, slot, at)
    }

    fn save(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        if writer.is_in_parts() {
            return self.save_own_rows(optimizer, prefix, writer);
        }
        self.save_on_chief(optimizer, prefix, writer)
    }

    fn new_copies(&self, parameters: &Parameters, layout: &[SlotSpec]) -> Result<Vec<Slots>> {
        let Some(copied) = self.partition.copied_worker() else { return Ok(Vec::new()) };
        new_slots(parameters, layout, |number| self.partition.share(number, copied))
    }

    fn restore<'a>(
        &'a self,
        optimizer: &'a Inner,
        _prefix: &str,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Saved<'a>> {
        self.restore_with_copies(optimizer, names, from)
    }

    fn is_incomplete(&self, optimizer: &Inner) -> bool {
        optimizer.lacks_shards()
    }

    fn replicated(&self) -> Option<&Partition> {
        Some(&*self.partition).filter(|partition| partition.copied_worker().is_some())
    }

    fn rewind(&self, optimizer: &Inner) -> Result<()> {
        if self.replicated().is_some() {
            return self.rewind_replicated(optimizer);
        }
        let reason = "the workers shard the state of the optimizer (shard_state), and the shard of a failed worker is lost";
        Err(Error::invalid("Training::recover", reason))
    }

    fn require_rule(&self, operation: &'static str, rule: &dyn Rule) -> Result<()> {
        require_rule(operation, rule)
    }

    fn require_transform(&self, operation: &'static str, when: When, transform: &Transform) -> Result<()> {
        if when == When::BeforeReduce { Ok(()) } else { require_transform(operation, transform) }
    }
}

/// The number of elements whose slots are copied at once, which stay in the cache.
const COPIED: usize = 4 * BLOCK;

/// The part of the state that an update writes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Write {
    /// The new values and the new slots.
    InPlace,
    /// Only the new values. The slots stay the same.
    ValuesOnly,
}

/// A variable that has a gradient on at least one replica, and the elements of it that change.
struct ChangedVariable<'v, 'r> {
    variable: &'v VariableOperands<'r>,
    width: usize,
    touched: Touched,
}

impl ChangedVariable<'_, '_> {
    /// Returns the number of bytes that a worker sends for its range `owned` of this variable.
    fn bytes(&self, owned: &Range<usize>) -> usize {
        (self.touched.count(owned) * self.width).next_multiple_of(WIDEST)
    }
}

impl Sharded {
    pub(crate) fn new(partition: Arc<Partition>) -> Self {
        Self { partition }
    }

    fn update_and_exchange(
        &self,
        step: &Update<'_>,
        change: &Change<'_>,
        all: &Operands<'_>,
        calling: &mut GroupCall<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let (Update { rules, transforms, .. }, parameters) = (step, step.parameters());
        let variables = all.variables();
        let resolved = resolve(transforms, parameters, &variables, threads, |mine| {
            norms::all_squares(calling, &self.partition, &variables, mine)
        })?;
        let changing: Vec<_> = variables.iter().map(|variable| changing(variable, rules)).collect();
        let size = |worker| {
            changing
                .iter()
                .map(|each| each.bytes(&self.partition.range(each.variable.index, worker)))
                .sum::<usize>()
        };
        let mut new = calling.buffers().take(size(self.partition.worker()));
        change.begin();
        let owned = |number: usize| self.partition.own_range(number);
        let gradients = ShardGradients { resolved: &resolved, sums: None };
        self.update(
            step,
            &mut change.slots(),
            &changing,
            (&owned, &gradients),
            new.bytes_mut(),
            Write::InPlace,
            threads,
        )?;
        let new =
            calling.all_gather_sized("its weights", new.freeze(), size).map_err(failure(step.operation))?;
        let _writing = parameters.mark_written(changing.iter().map(|each| each.variable.index));
        self.write(&changing, new, threads)?;
        let mut changed = changing.iter();
        changed.try_for_each(|each| rounding::round(parameters, rules, each.variable.index, &each.touched))
    }

    /// Computes the new values of the elements in the range `owned` of each variable, and writes them to `new`. `slots`
    /// are those of these elements.
    #[allow(clippy::too_many_arguments)]
    fn update(
        &self,
        step: &Update<'_>,
        slots: &mut [Slots],
        changing: &[ChangedVariable<'_, '_>],
        (owned, gradients): (&dyn Fn(usize) -> Range<usize>, &ShardGradients<'_>),
        mut new: &mut [u8],
        write: Write,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let values: Vec<_> =
            changing.iter().map(|each| each.variable.variable.storage_and_layout()).collect();
        let mut slots: Vec<Option<&mut Slots>> = slots.iter_mut().map(Some).collect();
        let mut parts = Vec::with_capacity(changing.len());
        for (at, (each, (storage, layout))) in changing.iter().zip(&values).enumerate() {
            let ChangedVariable { variable, touched, width } = each;
            let owned = owned(variable.index);
            let place = new.split_off_mut(..each.bytes(&owned)).unwrap_or_default();
            let place = &mut place[..touched.count(&owned) * width];
            let other = || {
                let reason = format!("variable {} has changed its dtype or device", variable.name);
                Error::invalid(step.operation, reason)
            };
            let Storage::Cpu(storage) = &**storage else { return Err(other()) };
            let every_row = step.rules.visits_every_row(variable.index);
            let shape = (step.rules.of(variable.index).0.unit(), variable.variable.dims());
            let gradient = match gradients.of(at, variable.index) {
                Some(gradient) => gradient,
                None => variable.range(every_row, None)?,
            };
            parts.push(match (gradient, slots[variable.index].take()) {
                (EitherFloat::F32(gradient), Some(Slots::F32(slots))) => EitherFloat::F32(ShardUpdate::new(
                    gradient,
                    touched,
                    owned,
                    (operand(storage, layout)?, place),
                    slots,
                    shape,
                )),
                (EitherFloat::F64(gradient), Some(Slots::F64(slots))) => EitherFloat::F64(ShardUpdate::new(
                    gradient,
                    touched,
                    owned,
                    (operand(storage, layout)?, place),
                    slots,
                    shape,
                )),
                _ => return Err(other()),
            });
        }
        let rules = &step.rules;
        WorkSplit::partition(threads.count, parts).each(threads, |parts| {
            parts.into_iter().try_for_each(|part| match part {
                EitherFloat::F32(part) => part.update(rules, gradients, write),
                EitherFloat::F64(part) => part.update(rules, gradients, write),
            })
        })?;
        Ok(())
    }

    /// Writes the new values from all workers to the variables.
    fn write(
        &self,
        changing: &[ChangedVariable<'_, '_>],
        mut new: Vec<Bytes>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        for changing in changing.chunks(LOCKED) {
            let tensors: Vec<&Var> = changing.iter().map(|each| each.variable.variable).collect();
            with_locked(&tensors, |elements| {
                let mut parts = Vec::with_capacity(changing.len() * new.len());
                for (each, elements) in changing.iter().zip(elements) {
                    let mut rest: &mut [u8] = match elements {
                        Locked::F32(elements) => bytemuck::cast_slice_mut(elements),
                        Locked::F64(elements) => bytemuck::cast_slice_mut(elements),
                    };
                    let ChangedVariable { variable, touched, width } = each;
                    for worker in self.partition.in_order(variable.index) {
                        let at = self.partition.range(variable.index, worker);
                        let values = rest.split_off_mut(..at.len() * width).unwrap_or_default();
                        let mut sent = new[worker].split_to(each.bytes(&at));
                        sent.truncate(touched.count(&at) * width);
                        parts.push(ReceivedShard { values, at, touched, width: *width, new: sent });
                    }
                }
                WorkSplit::partition(threads.count, parts).each(threads, |parts| {
                    parts.into_iter().for_each(ReceivedShard::write);
                    Ok(())
                })?;
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Returns a variable together with the elements of it that change in this step.
fn changing<'v, 'r>(variable: &'v VariableOperands<'r>, rules: &Rules<'_>) -> ChangedVariable<'v, 'r> {
    let touched = rounding::touched(variable, rules);
    ChangedVariable { variable, touched, width: variable.variable.dtype().size_in_bytes() }
}

/// The update of the elements of a variable that are assigned to this worker.
enum ShardUpdate<'a, F> {
    Dense(UpdateRange<'a, F>),
    Rows(RowShard<'a, F>),
}

impl<'a, F: Number> ShardUpdate<'a, F> {
    /// Creates the update. `values` contains all values of the variable, and changed values are written to `new`.
    /// `shape` consists of the rule's unit and the shape of the variable.
    fn new(
        gradient: GradientRange<'a, F>,
        touched: &'a Touched,
        owned: Range<usize>,
        (values, new): (&'a [F], &'a mut [u8]),
        slots: &'a mut [Vec<F>],
        shape: (Unit, &'a [usize]),
    ) -> Self {
        let (old, new) = (&values[owned.clone()], bytemuck::cast_slice_mut(new));
        match gradient.summands {
            Summands::Dense(_) => {
                ShardUpdate::Dense(UpdateRange::new(new, slots, gradient, shape).with_old(old))
            }
            Summands::Rows(rows) => {
                let rows = (rows, gradient.weights);
                ShardUpdate::Rows(RowShard::new(
                    gradient.variable,
                    rows,
                    (owned, touched),
                    (old, new),
                    slots,
                    shape,
                ))
            }
        }
    }

    /// Computes the new values, and the new slots if `write` says so.
    fn update(self, rules: &Rules<'_>, gradients: &ShardGradients<'_>, write: Write) -> Result<()> {
        match self {
            // Rows are copied in any case before the rule computes them.
            ShardUpdate::Rows(rows)
                if write == Write::InPlace || matches!(rows.touched, Touched::Rows(..)) =>
            {
                let (rule, step) = rules.of(rows.variable);
                rows.update(rule, step, gradients.resolved, write)?
            }
            ShardUpdate::Dense(range) if write == Write::InPlace => {
                update(range, rules, gradients.transforms_of_dense())?
            }
            all => all.update_copies(rules, gradients)?,
        }
        Ok(())
    }

    /// Computes the new values with copies of the slots, a part of them at a time.
    fn update_copies(mut self, rules: &Rules<'_>, gradients: &ShardGradients<'_>) -> Result<()> {
        let mut copies: Vec<Vec<F>> = Vec::new();
        while self.len() > 0 {
            let len = if self.is_whole() { self.len() } else { self.len().min(COPIED) };
            let part = self.split_front(len);
            let slots = match &part {
                ShardUpdate::Dense(range) => range.slots(),
                ShardUpdate::Rows(rows) => &rows.slots,
            };
            copies.resize_with(slots.len(), Vec::new);
            for (copy, slot) in copies.iter_mut().zip(slots) {
                copy.clear();
                copy.extend_from_slice(slot);
            }
            let slots = copies.iter_mut().map(Vec::as_mut_slice).collect();
            let part = match part {
                ShardUpdate::Dense(range) => ShardUpdate::Dense(range.with_slots(slots)),
                ShardUpdate::Rows(rows) => ShardUpdate::Rows(rows.with_slots(slots)),
            };
            part.update(rules, gradients, Write::InPlace)?;
        }
        Ok(())
    }
}

impl<F: Number> Splittable for ShardUpdate<'_, F> {
    fn len(&self) -> usize {
        match self {
            ShardUpdate::Dense(range) => range.len(),
            ShardUpdate::Rows(rows) => rows.len(),
        }
    }

    fn split_front(&mut self, len: usize) -> Self {
        match self {
            ShardUpdate::Dense(range) => ShardUpdate::Dense(range.split_front(len)),
            ShardUpdate::Rows(rows) => ShardUpdate::Rows(rows.split_front(len)),
        }
    }

    fn is_whole(&self) -> bool {
        match self {
            ShardUpdate::Dense(range) => range.is_whole(),
            ShardUpdate::Rows(rows) => rows.is_whole(),
        }
    }
}

/// The memory of a range of a variable's elements, and the received new values of the elements that change.
struct ReceivedShard<'a> {
    values: &'a mut [u8],
    /// The range of elements that `values` contains.
    at: Range<usize>,
    touched: &'a Touched,
    /// The size of an element in bytes.
    width: usize,
    new: Bytes,
}

impl ReceivedShard<'_> {
    fn write(mut self) {
        for span in self.touched.spans(&self.at) {
            let place = (span.start - self.at.start) * self.width..(span.end - self.at.start) * self.width;
            let new = self.new.split_to(place.len());
            self.values[place].copy_from_slice(&new);
        }
    }
}

impl Splittable for ReceivedShard<'_> {
    fn len(&self) -> usize {
        self.at.len()
    }

    fn split_front(&mut self, len: usize) -> Self {
        let at = self.at.start..self.at.end.min(self.at.start + len);
        self.at.start = at.end;
        let values = self.values.split_off_mut(..at.len() * self.width).unwrap_or_default();
        let new = self.new.split_to(self.touched.count(&at) * self.width);
        Self { values, new, touched: self.touched, width: self.width, at }
    }
}

/// Returns an error if a rule cannot be applied in place.
pub(crate) fn require_rule(operation: &'static str, rule: &dyn Rule) -> Result<()> {
    if rule.only_computes() {
        return Ok(());
    }
    let reason = format!(
        "rule {} may do more than compute, so it needs copies of complete variables, which no worker has with a \
         sharded state; if its kernel only does arithmetic, return true from only_computes; or do not shard the state",
        rule.name()
    );
    Err(Error::invalid(operation, reason))
}

/// Returns an error if a transform needs complete gradients.
pub(crate) fn require_transform(operation: &'static str, transform: &Transform) -> Result<()> {
    if transform.closure().is_none() {
        return Ok(());
    }
    let reason = "Transform::each needs complete gradients after the reduction, which no worker has with a sharded \
                  state; pass it to before_reduce, or do not shard the state";
    Err(Error::invalid(operation, reason))
}

#[cfg(test)]
mod tests;
