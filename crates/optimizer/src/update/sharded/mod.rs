//! The update of variables of which each worker owns a range: it updates that, and gets the new values of the others.

mod gather;
mod norms;
mod rows;
mod touched;

use crate::Inner;
use crate::gradients::row_len;
use crate::groups::Rules;
use crate::partition::Partition;
use crate::progress::Change;
use crate::reduce::operands::{Operands, Variable};
use crate::reduce::range::{GradientRange, Summands};
use crate::reduce::resolve;
use crate::reduce::split::{Splittable, WorkSplit};
use crate::slots::Slots;
use crate::sync::{Threads, abort_on};
use crate::transform::{ResolvedTransforms, Transform};
use crate::update::local::{InPlace, LOCKED, UpdateRange, update};
use crate::update::locked::{Locked, with_locked};
use crate::update::{Backend, Pass, Update, When};
use bytes::Bytes;
use candle_core::{Storage, Tensor, Var};
use distribute_base::internal::{Any, Number, operand};
use distribute_base::{Error, Result};
use distribute_checkpoint::Writer;
use distribute_collective::group::GroupCall;
use distribute_core::internal::failure;
use distribute_optim::Rule;
use rows::RowShard;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use touched::Touched;

/// The size that the new values of each variable are rounded up to, so that numbers of any type may begin there.
const WIDEST: usize = size_of::<f64>();

/// Updates the elements that this worker owns, and writes what all workers have made of theirs.
///
/// New values are put into memory of their own, and no variable is written before those of all workers are there. Slots
/// are updated where they lie: a step that ends between the two leaves the state incomplete, which every later call
/// that needs it tells.
// INV-40
#[derive(Debug)]
pub(crate) struct Sharded {
    partition: Arc<Partition>,
}

impl Backend for Sharded {
    fn is_one_pass(&self, _optimizer: &Inner) -> bool {
        true
    }

    /// # Errors
    /// [`Error::IncompleteState`] where it ends after the first slot has been written; no variable has changed then.
    fn reduce_and_apply(&self, update: &Update<'_>, pass: &Pass<'_>) -> Result<()> {
        let Pass { change, operands, sync, threads, .. } = pass;
        let Some(mut calling) = sync.calling("its update") else {
            // Of one worker nothing is shared out.
            return InPlace::new(update, update.transforms).reduce_and_apply(change, operands, threads);
        };
        let made = self.make(update, change, operands, &mut calling, threads);
        made.inspect_err(|error| abort_on(Some(calling), error)).map_err(|error| {
            if !change.is_incomplete() {
                return error;
            }
            ended(update.operation, change.number(), error)
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
        self.save_on_chief(optimizer, prefix, writer)
    }

    fn rewind(&self) -> Result<()> {
        let reason = "the workers share the state of the optimizer (sharded_state), and that of one that is lost is lost with it";
        Err(Error::invalid("Training::recover", reason))
    }

    fn require_rule(&self, operation: &'static str, rule: &dyn Rule) -> Result<()> {
        require_rule(operation, rule)
    }

    fn require_transform(&self, operation: &'static str, when: When, transform: &Transform) -> Result<()> {
        if when == When::BeforeReduce { Ok(()) } else { require_transform(operation, transform) }
    }
}

/// A variable with a gradient on some replica, and which of its elements change.
struct Changing<'v, 'r> {
    variable: &'v Variable<'r>,
    width: usize,
    touched: Touched,
}

impl Changing<'_, '_> {
    /// Returns the number of bytes that a worker sends which updates these elements.
    fn bytes(&self, owned: &Range<usize>) -> usize {
        (self.touched.count(owned) * self.width).next_multiple_of(WIDEST)
    }
}

impl Sharded {
    pub(crate) fn new(partition: Arc<Partition>) -> Self {
        Self { partition }
    }

    fn make(
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
            norms::of_all(calling, &self.partition, &variables, mine)
        })?;
        let changing: Vec<_> = variables.iter().map(|variable| changing(variable, rules)).collect();
        let size = |worker| {
            changing
                .iter()
                .map(|each| each.bytes(&self.partition.of(each.variable.index, worker)))
                .sum::<usize>()
        };
        let mut new = calling.buffers().take(size(self.partition.world().worker()));
        change.begin_step();
        self.update(step, change, &changing, &resolved, new.bytes_mut(), threads)?;
        let new =
            calling.all_gather_sized("its weights", new.freeze(), size).map_err(failure(step.operation))?;
        let _writing = parameters.writing(changing.iter().map(|each| each.variable.index));
        self.write(&changing, new, threads)
    }

    /// Puts the new values of the elements that this worker owns into `new`.
    fn update(
        &self,
        step: &Update<'_>,
        change: &Change<'_>,
        changing: &[Changing<'_, '_>],
        resolved: &ResolvedTransforms,
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
            let owned = self.partition.mine(variable.index);
            let place = new.split_off_mut(..each.bytes(&owned)).unwrap_or_default();
            let place = &mut place[..touched.count(&owned) * width];
            let other = || {
                let reason = format!("variable {} has changed its dtype or device", variable.name);
                Error::invalid(step.operation, reason)
            };
            let Storage::Cpu(storage) = &**storage else { return Err(other()) };
            let every_row = step.rules.of(variable.index).0.moves_absent_rows();
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
        let rules = &step.rules;
        WorkSplit::partition(threads.count, pieces).each(threads, |pieces| {
            pieces.into_iter().try_for_each(|piece| match piece {
                Any::F32(piece) => piece.update(rules, resolved),
                Any::F64(piece) => piece.update(rules, resolved),
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
                    for worker in self.partition.in_order(variable.index) {
                        let at = self.partition.of(variable.index, worker);
                        let values = rest.split_off_mut(..at.len() * width).unwrap_or_default();
                        let mut sent = new[worker].split_to(each.bytes(&at));
                        sent.truncate(touched.count(&at) * width);
                        pieces.push(Written { values, at, touched, width: *width, new: sent });
                    }
                }
                WorkSplit::partition(threads.count, pieces).each(threads, |pieces| {
                    pieces.into_iter().for_each(Written::write);
                    Ok(())
                })?;
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Returns a variable with the elements that change.
fn changing<'v, 'r>(variable: &'v Variable<'r>, rules: &Rules<'_>) -> Changing<'v, 'r> {
    let every_row = rules.of(variable.index).0.moves_absent_rows();
    let touched = match variable.rows().filter(|_| !every_row) {
        Some(rows) => Touched::Rows(rows, row_len(variable.variable)),
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

    fn update(self, rules: &Rules<'_>, resolved: &ResolvedTransforms) -> Result<()> {
        match self {
            Piece::Dense(range) => update(range, rules, resolved)?,
            Piece::Rows(rows) => {
                let (rule, step) = rules.of(rows.variable);
                rows.update(rule, step, resolved)?
            }
        }
        Ok(())
    }
}

impl<F: Number> Splittable for Piece<'_, F> {
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
    /// The range of elements.
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

impl Splittable for Written<'_> {
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

/// Refuses a rule that is not applied where variables lie.
pub(crate) fn require_rule(operation: &'static str, rule: &dyn Rule) -> Result<()> {
    if rule.only_computes() {
        return Ok(());
    }
    let reason = format!(
        "rule {} may do more than compute, and is applied to copies of whole variables, which a sharded state has not; if its \
         kernel does nothing but arithmetic, let only_computes say so; or leave the state whole, by sharded_state(false)",
        rule.name()
    );
    Err(Error::invalid(operation, reason))
}

/// Refuses a transform that needs whole gradients.
pub(crate) fn require_transform(operation: &'static str, transform: &Transform) -> Result<()> {
    if transform.closure().is_none() {
        return Ok(());
    }
    let reason = "Transform::each gets whole gradients after the reduction, and with a sharded state no worker has them; give it to \
                  before_reduce, or leave the state whole, by sharded_state(false)";
    Err(Error::invalid(operation, reason))
}

/// Some workers have updated their part of the state, and were not told that the others have.
pub(crate) fn incomplete(operation: &'static str, step: u64, workers: &[usize]) -> Error {
    let names: Vec<_> = workers.iter().map(|worker| format!("worker {worker}")).collect();
    let reason = format!(
        "step {step} of this optimizer, whose state is sharded, has ended on {} between the update of the state and the exchange \
         of the new weights; {ADVICE}",
        names.join(", ")
    );
    Error::IncompleteState { operation, step, reason, source: None }
}

/// The step in which that happens.
fn ended(operation: &'static str, step: u64, source: Error) -> Error {
    let reason = format!(
        "{source}; step {step} of this optimizer, whose state is sharded, has ended here between the update of the state and the \
         exchange of the new weights: no weight has changed; {ADVICE}"
    );
    Error::IncompleteState { operation, step, reason, source: Some(Box::new(source)) }
}

const ADVICE: &str = "restore the last checkpoint on all workers";

#[cfg(test)]
mod tests;
