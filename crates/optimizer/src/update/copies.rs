//! The update for rules that run the program's code. Each replica applies the rules to copies of its range, and the
//! variables are written when all ranges are complete.
//!
//! Therefore no replica waits for such a rule beyond the deadline, no variable is locked while the rule runs, and
//! nothing changes if the rule fails.

use crate::Parameters;
use crate::gradients::row_len;
use crate::groups::Rules;
use crate::progress::{Change, Progress};
use crate::reduce::split::{Splittable, WorkSplit};
use crate::slots::Slots;
use crate::sync::StepSync;
use crate::update::locked::{Locked, with_locked};
use crate::update::touched::Touched;
use crate::update::{Update, rounding};
use candle_core::{DType, Var};
use distribute_base::internal::{EitherFloat, Elements, Number, ReplicaGradient, panicked, with_elements};
use distribute_base::{Error, Result};
use distribute_core::internal::{Mode, enter};
use distribute_optim::{Rule, RuleExt, Step};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Implements [`Backend::apply`](crate::update::Backend::apply) for rules that may run the program's code, by applying
/// reduced gradients to copies.
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
        write(parameters, &mut change.slots(), made.iter().flat_map(|updates| updates.iter()))?;
        let gradients = gradients.iter().enumerate().filter_map(|(number, of)| Some((number, of.as_ref()?)));
        for (number, gradient) in gradients {
            let touched = match gradient {
                ReplicaGradient::Rows(rows) if !update.rules.visits_every_row(number) => {
                    Touched::Rows(rows.rows.clone(), row_len(&parameters.variables[number].1))
                }
                _ => Touched::All,
            };
            rounding::round(parameters, &update.rules, number, &touched)?;
        }
        parameters.commit(change)
    })
}

/// The new values of a range of one variable.
#[derive(Debug)]
struct UpdatedCopy {
    variable: usize,
    selection: Selection,
    values: Elements,
    slots: Vec<Elements>,
}

/// A selection of a variable's elements.
#[derive(Debug)]
enum Selection {
    Elements(Range<usize>),
    /// Some rows, and the number of elements in each.
    Rows(Vec<usize>, usize),
}

impl Selection {
    fn take<F: Copy>(&self, all: &[F]) -> Vec<F> {
        match self {
            Selection::Elements(at) => all[at.clone()].to_vec(),
            Selection::Rows(rows, width) => {
                rows.iter().flat_map(|row| &all[row * width..][..*width]).copied().collect()
            }
        }
    }

    fn put<F: Copy>(&self, all: &mut [F], values: &[F]) {
        match self {
            Selection::Elements(at) => all[at.clone()].copy_from_slice(values),
            Selection::Rows(rows, width) => {
                for (row, values) in rows.iter().zip(values.chunks_exact((*width).max(1))) {
                    all[row * width..][..*width].copy_from_slice(values);
                }
            }
        }
    }
}

/// A range of one variable that the rule visits, in units of elements or rows.
struct Span {
    variable: usize,
    units: Range<usize>,
    /// The number of elements in a unit: 1, or the length of a row.
    width: usize,
}

impl Splittable for Span {
    fn len(&self) -> usize {
        self.units.len() * self.width
    }
    fn split_front(&mut self, len: usize) -> Self {
        let border = self.units.end.min(self.units.start + len.div_ceil(self.width.max(1)));
        let units = self.units.start..border;
        self.units.start = border;
        Self { units, ..*self }
    }
}

/// Applies the rules to copies of the ranges that belong to replica `rank` of `count`. `gradients` must have been
/// reduced.
fn update_all(
    rules: &Rules<'_>,
    parameters: &Parameters,
    progress: &Progress,
    gradients: &[Option<ReplicaGradient>],
    (rank, count): (usize, usize),
) -> Result<Vec<UpdatedCopy>> {
    let mut spans = Vec::new();
    for (index, ((_, variable), gradient)) in parameters.variables.iter().zip(gradients).enumerate() {
        let Some(gradient) = gradient else { continue };
        let (units, width) = match gradient {
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
        let Some(gradient) = &gradients[span.variable] else { return Err(changed(name)) };
        let rule = rules.of(span.variable);
        match variable.dtype() {
            DType::F32 => update::<f32>(rule, progress, span, name, variable, gradient),
            _ => update::<f64>(rule, progress, span, name, variable, gradient),
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
    gradient: &ReplicaGradient,
) -> Result<UpdatedCopy> {
    let Span { variable: index, units, width } = span;
    let every_row = rule.moves_absent_rows();
    let selection = match gradient {
        ReplicaGradient::Rows(rows) if !every_row => {
            Selection::Rows(rows.rows[units.clone()].to_vec(), width)
        }
        _ => Selection::Elements(units.start * width..units.end * width),
    };
    let mut values = with_elements(variable.as_tensor(), |all: &[F]| selection.take(all))?;
    let mut slots: Vec<Vec<F>> = {
        let all = progress.read_in_step();
        let of_variable = all[index].of::<F>().ok_or_else(|| changed(name))?;
        of_variable.iter().map(|slot| selection.take(slot)).collect()
    };
    let mut of_slots: Vec<&mut [F]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
    let made = catch_unwind(AssertUnwindSafe(|| match gradient {
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
    Ok(UpdatedCopy {
        variable: index,
        selection,
        values: F::into_elements(values),
        slots: slots.into_iter().map(F::into_elements).collect(),
    })
}

/// Writes the new values that the replicas have computed to variables and slots.
fn write<'u>(
    parameters: &Parameters,
    slots: &mut [Slots],
    all: impl Iterator<Item = &'u UpdatedCopy>,
) -> Result<()> {
    let _writing = parameters.mark_written(0..parameters.variables.len());
    for UpdatedCopy { variable: index, selection, values, slots: made } in all {
        let (name, variable) = &parameters.variables[*index];
        with_locked(&[variable], |locked| {
            for locked in locked {
                match (locked, values) {
                    (Locked::F32(all), EitherFloat::F32(values)) => selection.put(all, values),
                    (Locked::F64(all), EitherFloat::F64(values)) => selection.put(all, values),
                    _ => return Err(changed(name)),
                }
            }
            Ok(())
        })?;
        for (number, made) in made.iter().enumerate() {
            match (&mut slots[*index], made) {
                (Slots::F32(slots), EitherFloat::F32(made)) => selection.put(&mut slots[number], made),
                (Slots::F64(slots), EitherFloat::F64(made)) => selection.put(&mut slots[number], made),
                _ => return Err(changed(name)),
            }
        }
    }
    Ok(())
}

fn changed(name: &str) -> Error {
    Error::invalid("optimizer step", format!("variable {name} has changed its dtype"))
}
