//! The update of a sharded state of which each worker also has the slots of the worker before it.
//!
//! | message | from | bytes | after it |
//! |---|---|---|---|
//! | its sums | each worker to the next one | those of its reduced gradients | the next worker can update the copies |
//! | its weights | each worker to all | those of its new values | each worker makes the step |
//!
//! No slot changes before the last message has arrived, so a worker has the slots of its weights until it makes the
//! step. A worker sends its weights when it has the sums of its own slots and of its copies. So if any worker makes the
//! step, all others are able to. If the last message fails, a worker computes the slots of that step in separate
//! memory, and keeps them until the workers agree whether one of them has made it.
//!
//! The copies are computed from the same sums by the same rules, which costs fewer bytes than sending them: slots are
//! as large as the sums, or several times larger.

// - INV-109: a step changes slots only after the last message, and `ShardCopies::next` has both versions after that
//   message has failed. Tests: `tests.rs` next to this file, `clusters/recovery/sharded.rs`.

use super::{ChangedVariable, Sharded, WIDEST, Write, changing, norms};
use crate::Inner;
use crate::progress::{Change, Incomplete, NextSlots};
use crate::reduce::operands::{FullRange, Operands, Values, VariableOperands};
use crate::reduce::range::{GradientRange, Rounding, Summands, blocks};
use crate::reduce::resolve;
use crate::reduce::split::{Splittable, WorkSplit};
use crate::slots::Slots;
use crate::sync::Threads;
use crate::transform::ResolvedTransforms;
use crate::update::{Saved, Update, read_slots, rounding};
use bytes::Bytes;
use candle_core::DType;
use distribute_base::Result;
use distribute_base::internal::{EitherFloat, Number};
use distribute_checkpoint::Reader;
use distribute_collective::group::{GroupCall, numbers};
use distribute_collective::recovery::shards::Version;
use distribute_core::internal::failure;
use distribute_decisions::internal::BLOCK;
use distribute_log::warn_or_stderr;
use std::borrow::Cow;
use std::ops::Range;

/// Reduced gradients of a range of each variable; `None` if the gradient is by row, which all workers have.
type Sums<'a> = Vec<Option<EitherFloat<Cow<'a, [f32]>, Cow<'a, [f64]>>>>;

/// The gradients of a shard.
pub(super) struct ShardGradients<'a> {
    pub(super) resolved: &'a ResolvedTransforms,
    /// The reduced and transformed gradients of dense variables. `None` if they have not been reduced.
    pub(super) sums: Option<(Sums<'a>, &'a ResolvedTransforms)>,
}

impl ShardGradients<'_> {
    /// Returns the reduced gradient of the variable with index `number`, which is the one at this position among those
    /// that change.
    pub(super) fn of(&self, position: usize, number: usize) -> Option<FullRange<'_>> {
        let (sums, _) = self.sums.as_ref()?;
        Some(match sums.get(position)?.as_ref()? {
            EitherFloat::F32(sum) => EitherFloat::F32(reduced(number, sum)),
            EitherFloat::F64(sum) => EitherFloat::F64(reduced(number, sum)),
        })
    }

    /// Returns the transforms that are still to be applied to dense gradients.
    pub(super) fn transforms_of_dense(&self) -> &ResolvedTransforms {
        self.sums.as_ref().map_or(self.resolved, |(_, none)| none)
    }
}

/// Returns a gradient that needs no further reduction.
fn reduced<F: Number>(variable: usize, sum: &[F]) -> GradientRange<'_, F> {
    GradientRange {
        variable,
        weights: [F::of(1.)].into(),
        summands: Summands::Dense(vec![sum]),
        rounding: Rounding::default(),
        values: &[],
    }
}

impl Sharded {
    /// Reduces the gradients, exchanges sums and new values, and updates the variables, the slots, and the copies of
    /// the slots of another worker.
    pub(super) fn update_replicated(
        &self,
        step: &Update<'_>,
        change: &Change<'_>,
        all: &Operands<'_>,
        calling: &mut GroupCall<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let (Update { rules, transforms, operation, .. }, parameters) = (step, step.parameters());
        let variables = all.variables();
        let resolved = resolve(transforms, parameters, &variables, threads, |mine| {
            norms::all_squares(calling, &self.partition, &variables, mine)
        })?;
        let changing: Vec<_> = variables.iter().map(|variable| changing(variable, rules)).collect();
        change.copies().next = None;

        let (me, none) = (self.partition.worker(), ResolvedTransforms::default());
        let copied = self.partition.copied_worker().unwrap_or(me);
        let sums = self.sums(&changing, &variables, &resolved, calling, threads)?;
        let sums_of_copied = match self.partition.copying_worker() {
            Some(next) if changing.iter().any(|each| !each.variable.by_row()) => calling
                .shift("its sums", (next, sums.clone()), (copied, self.size_of_sums(&changing, copied)))
                .map_err(failure(operation))?,
            _ => Bytes::new(),
        };
        let of_worker = |worker: usize, sums| {
            let sums = Some((self.split_sums(&changing, worker, sums), &none));
            ShardGradients { resolved: &resolved, sums }
        };
        let update = ShardedUpdate {
            sharded: self,
            step,
            changing: &changing,
            shards: [(me, of_worker(me, &sums)), (copied, of_worker(copied, &sums_of_copied))],
        };
        let size = |worker| update.size(worker);
        let mut new = calling.buffers().take(size(me));
        let [own, _] = &update.shards;
        update.write(own, &mut change.slots(), new.bytes_mut(), Write::ValuesOnly, threads)?;
        let new = match calling.all_gather_sized("its weights", new.freeze(), size) {
            Ok(new) => new,
            Err(error) => {
                // Another worker may have received the weights of all.
                match update.next(change, calling, threads) {
                    Ok(next) => change.copies().next = Some(next),
                    Err(other) => {
                        change.begin();
                        warn_or_stderr(|| {
                            tracing::warn!(
                                "{operation}: the state after this step cannot be computed: {other}"
                            )
                        });
                    }
                }
                return Err(failure(operation)(error));
            }
        };
        change.begin();
        update.make(&mut change.slots(), &mut change.copies().slots, calling, threads)?;
        let _writing = parameters.mark_written(changing.iter().map(|each| each.variable.index));
        self.write(&changing, new, threads)?;
        changing
            .iter()
            .try_for_each(|each| rounding::round(parameters, rules, each.variable.index, &each.touched))?;
        change.copies().complete(update.version(change));
        Ok(())
    }

    /// Returns the reduced and transformed gradients of this worker's ranges of dense variables.
    fn sums(
        &self,
        changing: &[ChangedVariable<'_, '_>],
        variables: &[VariableOperands<'_>],
        resolved: &ResolvedTransforms,
        calling: &GroupCall<'_>,
        threads: &Threads<'_>,
    ) -> Result<Bytes> {
        let values = Values::open(variables, resolved);
        let mut sums = calling.buffers().take(self.size_of_sums(changing, self.partition.worker()));
        let (mut rest, mut parts) = (sums.bytes_mut(), Vec::with_capacity(changing.len()));
        for (each, gradient) in changing.iter().zip(values.ranges(variables)?) {
            let range = self.partition.own_range(each.variable.index);
            let place = rest.split_off_mut(..size_of_sum(each, &range)).unwrap_or_default();
            let place = &mut place[..size_of_sum(each, &range).min(range.len() * each.width)];
            parts.push(match gradient {
                EitherFloat::F32(gradient) => {
                    EitherFloat::F32(SumRange { gradient, sum: bytemuck::cast_slice_mut(place) })
                }
                EitherFloat::F64(gradient) => {
                    EitherFloat::F64(SumRange { gradient, sum: bytemuck::cast_slice_mut(place) })
                }
            });
        }
        parts.retain(|part| match part {
            EitherFloat::F32(part) => part.is_dense(),
            EitherFloat::F64(part) => part.is_dense(),
        });
        WorkSplit::partition(threads.count, parts).each(threads, |parts| {
            parts.into_iter().for_each(|part| match part {
                EitherFloat::F32(part) => part.reduce(resolved),
                EitherFloat::F64(part) => part.reduce(resolved),
            });
            Ok(())
        })?;
        Ok(sums.freeze())
    }

    fn size_of_sums(&self, changing: &[ChangedVariable<'_, '_>], worker: usize) -> usize {
        let range = |each: &ChangedVariable<'_, '_>| self.partition.range(each.variable.index, worker);
        changing.iter().map(|each| size_of_sum(each, &range(each))).sum()
    }

    /// Splits the sums of a worker's ranges by variable.
    fn split_sums<'b>(
        &self,
        changing: &[ChangedVariable<'_, '_>],
        worker: usize,
        sums: &'b Bytes,
    ) -> Sums<'b> {
        let mut rest = &sums[..];
        let of = |each: &ChangedVariable<'_, '_>| {
            let range = self.partition.range(each.variable.index, worker);
            let bytes = rest.split_off(..size_of_sum(each, &range)).unwrap_or_default();
            if each.variable.by_row() {
                return None;
            }
            let bytes = bytes.get(..range.len() * each.width).unwrap_or_default();
            Some(match each.variable.variable.dtype() {
                DType::F32 => EitherFloat::F32(numbers(bytes)),
                _ => EitherFloat::F64(numbers(bytes)),
            })
        };
        changing.iter().map(of).collect()
    }

    /// Returns an error if a step has failed while it changed slots. Otherwise they are those of the weights.
    pub(super) fn rewind_replicated(&self, optimizer: &Inner) -> Result<()> {
        if !optimizer.progress.is_incomplete() {
            return Ok(());
        }
        let worker = self.partition.worker();
        Err(Incomplete::Copies.since("Training::recover", optimizer.finished_steps() + 1, &[worker]))
    }

    /// Reads the slots of this worker's present rank, and those that it copies, from a checkpoint. Returns a closure
    /// that sets them and the rank.
    pub(super) fn restore_with_copies<'a>(
        &'a self,
        optimizer: &'a Inner,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Saved<'a>> {
        let read = |worker: usize| {
            let of = |(number, names): (usize, &Vec<String>)| {
                read_slots(optimizer, number, names, from, &self.partition.share(number, worker))
            };
            names.iter().enumerate().map(of).collect::<Result<Vec<_>>>()
        };
        let worker = optimizer.parameters.strategy.world().worker();
        let slots = read(worker)?;
        let copies = self.partition.copied_by(worker).map(read).transpose()?;
        Ok(Box::new(move |change| {
            self.partition.set_worker(worker);
            *change.slots() = slots;
            if let Some(copies) = copies {
                change.copies().slots = copies;
            }
            Ok(())
        }))
    }
}

/// Returns the size in bytes of the sum of a range of a variable: none for gradients by row.
fn size_of_sum(each: &ChangedVariable<'_, '_>, range: &Range<usize>) -> usize {
    if each.variable.by_row() { 0 } else { (range.len() * each.width).next_multiple_of(WIDEST) }
}

/// The update of one step, for this worker's shard and for the one that it copies.
struct ShardedUpdate<'a, 'v, 'r> {
    sharded: &'a Sharded,
    step: &'a Update<'a>,
    changing: &'a [ChangedVariable<'v, 'r>],
    /// The workers of both shards, with their gradients.
    shards: [(usize, ShardGradients<'a>); 2],
}

impl ShardedUpdate<'_, '_, '_> {
    fn size(&self, worker: usize) -> usize {
        let range =
            |each: &ChangedVariable<'_, '_>| self.sharded.partition.range(each.variable.index, worker);
        self.changing.iter().map(|each| each.bytes(&range(each))).sum()
    }

    /// Returns the version of the state after the step.
    fn version(&self, change: &Change<'_>) -> Version {
        Version { step: change.number(), generation: self.step.parameters().strategy.generation() }
    }

    /// Writes the new values of a shard to `new`, and its new slots if `write` says so.
    fn write(
        &self,
        (worker, gradients): &(usize, ShardGradients<'_>),
        slots: &mut [Slots],
        new: &mut [u8],
        write: Write,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let owned = |number: usize| self.sharded.partition.range(number, *worker);
        self.sharded.update(self.step, slots, self.changing, (&owned, gradients), new, write, threads)
    }

    /// Writes the new slots of both shards. The variables must have the values before the step.
    fn make(
        &self,
        own: &mut [Slots],
        copy: &mut [Slots],
        calling: &GroupCall<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        for (shard, slots) in self.shards.iter().zip([own, copy]) {
            let mut values = calling.buffers().take(self.size(shard.0));
            self.write(shard, slots, values.bytes_mut(), Write::InPlace, threads)?;
        }
        Ok(())
    }

    /// Returns the slots after the step, in separate memory.
    fn next(&self, change: &Change<'_>, calling: &GroupCall<'_>, threads: &Threads<'_>) -> Result<NextSlots> {
        let (mut own, mut copy) = (change.slots().clone(), change.copies().slots.clone());
        self.make(&mut own, &mut copy, calling, threads)?;
        Ok(NextSlots { version: self.version(change), own, copy })
    }
}

/// A range of a variable's gradient, and the memory for its sum.
struct SumRange<'a, F> {
    gradient: GradientRange<'a, F>,
    sum: &'a mut [F],
}

impl<F> SumRange<'_, F> {
    fn is_dense(&self) -> bool {
        matches!(self.gradient.summands, Summands::Dense(_))
    }
}

impl<F: Number> SumRange<'_, F> {
    fn reduce(self, resolved: &ResolvedTransforms) {
        let Summands::Dense(replicas) = &self.gradient.summands else { return };
        let mut scratch = [F::of(0.); BLOCK];
        for at in blocks(self.sum.len()) {
            let values = self.gradient.values.get(at.clone()).unwrap_or_default();
            let sum = self.gradient.block(replicas, resolved, at.clone(), values, &mut scratch);
            self.sum[at].copy_from_slice(sum);
        }
    }
}

impl<F> Splittable for SumRange<'_, F> {
    fn len(&self) -> usize {
        self.gradient.len()
    }

    fn split_front(&mut self, len: usize) -> Self {
        let gradient = self.gradient.split_front(len);
        let sum = self.sum.split_off_mut(..gradient.elements()).unwrap_or_default();
        Self { gradient, sum }
    }
}

#[cfg(test)]
mod tests;
