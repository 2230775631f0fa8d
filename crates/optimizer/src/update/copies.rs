//! The update by rules that may do anything: applied to copies, each replica its range, and written when all are
//! through.
//!
//! So no replica waits for such a rule beyond the deadline, no variable is locked while it runs, and if it fails
//! nothing has changed.

use crate::Parameters;
use crate::gradients::row_len;
use crate::groups::Rules;
use crate::progress::{Change, Progress};
use crate::reduce::split::{Splittable, WorkSplit};
use crate::slots::Slots;
use crate::sync::StepSync;
use crate::update::Update;
use crate::update::locked::{Locked, with_locked};
use candle_core::{DType, Var};
use distribute_base::internal::{Any, Elements, Number, ReplicaGradient, panicked, with_elements};
use distribute_base::{Error, Result};
use distribute_core::internal::{Mode, enter};
use distribute_optim::{Rule, RuleExt, Step};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Applies reduced gradients to copies, by rules that may be the user's:
/// [`Backend::apply`](crate::update::Backend::apply).
pub(crate) fn apply(
    update: &Update<'_>,
    sync: &StepSync<'_>,
    gradients: &Arc<Vec<Option<ReplicaGradient>>>,
    change: Option<&Change<'_>>,
) -> Result<()> {
    let parameters = update.parameters();
    let made = sync.run_on_each("its update rule", |of| {
        let _own = enter(Mode::CrossReplica(parameters.strategy.clone()));
        update_all(&update.rules, parameters, &update.optimizer.progress, gradients, of)
    })?;
    sync.run_on_leader(|_| {
        let Some(change) = change else { return Ok(()) };
        write(parameters, &mut change.slots(), made.iter().flat_map(|of_replica| of_replica.iter()))?;
        parameters.commit(change)
    })
}

/// The result of a rule for a part of one variable.
#[derive(Debug)]
struct Updated {
    variable: usize,
    place: Place,
    values: Elements,
    slots: Vec<Elements>,
}

/// A selection of elements of a variable.
#[derive(Debug)]
enum Place {
    Elements(Range<usize>),
    /// Rows, and the number of elements of each.
    Rows(Vec<usize>, usize),
}

impl Place {
    fn take<F: Copy>(&self, all: &[F]) -> Vec<F> {
        match self {
            Place::Elements(at) => all[at.clone()].to_vec(),
            Place::Rows(rows, width) => {
                rows.iter().flat_map(|row| &all[row * width..][..*width]).copied().collect()
            }
        }
    }

    fn put<F: Copy>(&self, all: &mut [F], values: &[F]) {
        match self {
            Place::Elements(at) => all[at.clone()].copy_from_slice(values),
            Place::Rows(rows, width) => {
                for (row, values) in rows.iter().zip(values.chunks_exact((*width).max(1))) {
                    all[row * width..][..*width].copy_from_slice(values);
                }
            }
        }
    }
}

/// Elements or rows of one variable, those that the rule visits counted from 0.
struct Span {
    variable: usize,
    units: Range<usize>,
    /// Elements of a unit.
    width: usize,
}

impl Splittable for Span {
    fn len(&self) -> usize {
        self.units.len() * self.width
    }
    fn cut(&mut self, len: usize) -> Self {
        let border = self.units.end.min(self.units.start + len.div_ceil(self.width.max(1)));
        let units = self.units.start..border;
        self.units.start = border;
        Self { units, ..*self }
    }
}

/// Applies the rules to copies of the range that the replica with number `rank` of `count` owns. `gradients` are
/// reduced.
fn update_all(
    rules: &Rules<'_>,
    parameters: &Parameters,
    progress: &Progress,
    gradients: &[Option<ReplicaGradient>],
    (rank, count): (usize, usize),
) -> Result<Vec<Updated>> {
    let mut spans = Vec::new();
    for (index, ((_, variable), ready)) in parameters.variables.iter().zip(gradients).enumerate() {
        let Some(ready) = ready else { continue };
        let (units, width) = match ready {
            ReplicaGradient::Rows(_) if rules.of(index).0.moves_absent_rows() => {
                (variable.dims().first().copied().unwrap_or(0), row_len(variable))
            }
            ReplicaGradient::Rows(rows) => (rows.rows.len(), row_len(variable)),
            ReplicaGradient::Dense(_) => (variable.elem_count(), 1),
        };
        spans.push(Span { variable: index, units: 0..units, width });
    }
    let one = |span: Span| {
        let (name, variable) = &parameters.variables[span.variable];
        let Some(ready) = &gradients[span.variable] else { return Err(changed(name)) };
        let rule = rules.of(span.variable);
        match variable.dtype() {
            DType::F32 => update::<f32>(rule, progress, span, name, variable, ready),
            _ => update::<f64>(rule, progress, span, name, variable, ready),
        }
    };
    WorkSplit::partition(count, spans).of(rank).into_iter().map(one).collect()
}

fn update<F: Number>(
    (rule, step): (&dyn Rule, Step),
    progress: &Progress,
    span: Span,
    name: &str,
    variable: &Var,
    ready: &ReplicaGradient,
) -> Result<Updated> {
    let Span { variable: index, units, width } = span;
    let every_row = rule.moves_absent_rows();
    let place = match ready {
        ReplicaGradient::Rows(rows) if !every_row => Place::Rows(rows.rows[units.clone()].to_vec(), width),
        _ => Place::Elements(units.start * width..units.end * width),
    };
    let mut values = with_elements(variable.as_tensor(), |all: &[F]| place.take(all))?;
    let mut slots: Vec<Vec<F>> = {
        let all = progress.copying();
        let of_variable = all[index].of::<F>().ok_or_else(|| changed(name))?;
        of_variable.iter().map(|slot| place.take(slot)).collect()
    };
    let mut of_slots: Vec<&mut [F]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
    let made = catch_unwind(AssertUnwindSafe(|| match ready {
        ReplicaGradient::Dense(dense) => dense.with_elements(|all: &[F]| {
            rule.update(step, &mut values, &all[units.clone()], &mut of_slots).map_err(Error::from)
        })?,
        ReplicaGradient::Rows(rows) => {
            let all = rows.elements::<F>().ok_or_else(|| changed(name))?;
            let (present, of): (Vec<usize>, _) = if every_row {
                let at = |row: usize| rows.rows.partition_point(|present| *present < row);
                let of = at(units.start)..at(units.end);
                (rows.rows[of.clone()].iter().map(|row| row - units.start).collect(), of)
            } else {
                ((0..units.len()).collect(), units.clone())
            };
            let gradient = &all[of.start * width..of.end * width];
            rule.update_rows(step, &mut values, width, &present, gradient, &mut of_slots).map_err(Error::from)
        }
    }));
    made.unwrap_or_else(|panic| Err(panicked(&*panic)))?;
    Ok(Updated {
        variable: index,
        place,
        values: F::vector(values),
        slots: slots.into_iter().map(F::vector).collect(),
    })
}

/// Writes what the rules of all replicas made.
fn write<'u>(
    parameters: &Parameters,
    slots: &mut [Slots],
    all: impl Iterator<Item = &'u Updated>,
) -> Result<()> {
    let _writing = parameters.writing(0..parameters.variables.len());
    for Updated { variable: index, place, values, slots: made } in all {
        let (name, variable) = &parameters.variables[*index];
        with_locked(&[variable], |locked| {
            for locked in locked {
                match (locked, values) {
                    (Locked::F32(all), Any::F32(values)) => place.put(all, values),
                    (Locked::F64(all), Any::F64(values)) => place.put(all, values),
                    _ => return Err(changed(name)),
                }
            }
            Ok(())
        })?;
        for (number, made) in made.iter().enumerate() {
            match (&mut slots[*index], made) {
                (Slots::F32(slots), Any::F32(made)) => place.put(&mut slots[number], made),
                (Slots::F64(slots), Any::F64(made)) => place.put(&mut slots[number], made),
                _ => return Err(changed(name)),
            }
        }
    }
    Ok(())
}

fn changed(name: &str) -> Error {
    Error::invalid("optimizer step", format!("variable {name} has changed its dtype"))
}
