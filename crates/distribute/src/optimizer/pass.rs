//! The pass over all parameters: every replica reduces, transforms and updates the range that it owns.

use super::Trained;
use super::collect::collect;
use super::contribution::Ready;
use super::groups::Rules;
use super::locked::{Locked, with_locked};
use super::owners::Owners;
use super::slots::Slots;
use super::summed::{Summed, Values, Variable, Weighted, Whole};
use super::transform::{Each, Settled, Transform};
use super::update::{Piece, update};
use crate::error::panicked;
use crate::number::Any;
use crate::{Error, Result};
use candle_core::Var;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Variables that are locked at a time: candle's calls nest, and each takes stack.
const LOCKED: usize = 64;

/// What is run on several threads at once, with the number of each.
pub(super) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads that share the pass.
pub(super) struct Workers<'a> {
    pub(super) count: usize,
    /// Runs a closure once on each.
    pub(super) broadcast: &'a dyn Fn(&Work<'_>),
}

impl Workers<'_> {
    /// The calling thread only.
    pub(super) fn alone() -> Workers<'static> {
        Workers { count: 1, broadcast: &|work| work(0) }
    }
}

/// Reduces the gradients, transforms them, and applies the rules, to all variables that have a gradient on some replica.
///
/// None of it may be code of users: neither a closure among the transforms, nor a rule that does more than to compute.
pub(super) fn run(
    rules: &Rules<'_>,
    transforms: &[Transform],
    trained: &Trained,
    slots: &mut [Slots],
    all: &Weighted<'_>,
    workers: &Workers<'_>,
) -> Result<()> {
    let summed = Summed::new(trained, all)?;
    let mut variables = summed.variables();
    let settled = settle(transforms, trained, &variables, workers)?;

    let mut slots: Vec<Option<&mut Slots>> = slots.iter_mut().map(Some).collect();
    for variables in variables.chunks_mut(LOCKED) {
        let tensors: Vec<&Var> = variables.iter().map(|variable| variable.variable).collect();
        with_locked(&tensors, |elements| {
            let pieces = elements.into_iter().zip(variables).map(|(values, variable)| {
                let slots = slots[variable.index].take();
                let every_row = rules.of(variable.index).0.moves_absent_rows();
                match (values, slots, variable.stretch(every_row, None)?) {
                    (Locked::F32(values), Some(Slots::F32(slots)), Any::F32(stretch)) => {
                        Ok(Any::F32(Piece::new(values, slots, stretch)))
                    }
                    (Locked::F64(values), Some(Slots::F64(slots)), Any::F64(stretch)) => {
                        Ok(Any::F64(Piece::new(values, slots, stretch)))
                    }
                    _ => Err(Error::invalid(
                        "optimizer step",
                        format!("variable {} has changed its dtype", variable.name),
                    )),
                }
            });
            let owners = Owners::deal(workers.count, pieces.collect::<Result<Vec<_>>>()?);
            owners.each(workers, |pieces| {
                pieces.into_iter().try_for_each(|piece| match piece {
                    Any::F32(piece) => Ok(update(piece, rules, &settled)?),
                    Any::F64(piece) => Ok(update(piece, rules, &settled)?),
                })
            })?;
            Ok(())
        })?;
    }
    Ok(())
}

/// The gradients, reduced and transformed, as tensors of their own. Closures are left out.
pub(super) fn reduced(
    transforms: &[Transform],
    trained: &Trained,
    all: &Weighted<'_>,
    workers: &Workers<'_>,
) -> Result<Vec<Option<Ready>>> {
    let summed = Summed::new(trained, all)?;
    let variables = summed.variables();
    let settled = settle(transforms, trained, &variables, workers)?;
    collect(trained, &variables, &settled, workers)
}

/// Gradients as a closure of the user's changes them.
pub(super) fn changed(
    closure: &Each,
    trained: &Trained,
    mut gradients: Vec<Option<Ready>>,
) -> Result<Vec<Option<Ready>>> {
    for (index, (name, variable)) in trained.variables.iter().enumerate() {
        let Some(gradient) = gradients[index].take() else { continue };
        let gradient = gradient.into_gradient(variable)?;
        // On the thread that does this for all, a panic would be told of replica 0 only.
        let changed = catch_unwind(AssertUnwindSafe(|| closure(name, gradient)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        gradients[index] = Some(Ready::new(trained.check(index, changed)?, variable)?);
    }
    Ok(gradients)
}

/// A replica's own gradients, transformed.
pub(super) fn transformed(
    transforms: &[Transform],
    trained: &Trained,
    weight: f64,
    gradients: &[Option<Ready>],
) -> Result<Vec<Option<Ready>>> {
    let mut made: Option<Vec<Option<Ready>>> = None;
    for part in parts(transforms) {
        let all = made.as_deref().map_or((weight, gradients), |made| (1., made));
        let mut now = reduced(part, trained, &[all], &Workers::alone())?;
        if let Some(closure) = part.last().and_then(Transform::closure) {
            now = changed(closure, trained, now)?;
        }
        made = Some(now);
    }
    made.map_or_else(|| Err(Error::invalid("transform", "there are none")), Ok)
}

/// Transforms, cut behind each closure.
pub(super) fn parts(transforms: &[Transform]) -> impl Iterator<Item = &[Transform]> {
    transforms.split_inclusive(|transform| transform.closure().is_some())
}

fn settle(
    transforms: &[Transform],
    trained: &Trained,
    variables: &[Variable<'_>],
    workers: &Workers<'_>,
) -> Result<Settled> {
    Settled::new(transforms, trained.variables.len(), |settled| {
        let values = Values::open(variables, settled);
        let squares =
            Owners::deal(workers.count, values.stretches(variables)?).each(workers, |stretches| {
                let of = |stretch: &Whole<'_>| match stretch {
                    Any::F32(stretch) => stretch.squares(settled),
                    Any::F64(stretch) => stretch.squares(settled),
                };
                Ok(stretches.iter().flat_map(of).collect::<Vec<_>>())
            })?;
        Ok(squares.into_iter().flatten().collect())
    })
}
