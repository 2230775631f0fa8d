//! The reduction of gradients: sums over replicas, with transforms. Each thread reduces one range of the parameters.
//!
//! | module | contents |
//! |---|---|
//! | `operands` | the gradients that are added up, opened for reading |
//! | `range`, `rows` | a range of a variable's gradient on all replicas |
//! | `split` | the split of all variables over threads |
//! | `workers`, `row_records` | the exchange with other workers |
//! | `compressed` | the exchange of gradients with error feedback |
//! | `routed` | rows that are sent to the workers that store them |

pub(crate) mod compressed;
pub(crate) mod operands;
pub(crate) mod range;
pub(crate) mod routed;
pub(crate) mod row_records;
pub(crate) mod rows;
pub(crate) mod split;
pub(crate) mod workers;

use crate::gradients::Gradient;
use crate::parameters::Parameters;
use crate::reduce::operands::{FullRange, Operands, Values, VariableOperands};
use crate::reduce::split::WorkSplit;
use crate::sync::Threads;
use crate::transform::{GradientFn, ResolvedTransforms, Transform};
use candle_core::Tensor;
use distribute_base::Result;
use distribute_base::internal::{Dense, EitherFloat, Elements, ReplicaGradient, Rows, panicked};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The weight of a replica, and its gradient of each variable.
pub(crate) type Weighted<'r> = (f64, &'r [Option<ReplicaGradient>]);

/// Reduces and transforms gradients. Returns the results in separate memory. Transforms that are closures are skipped.
pub(crate) fn reduce_to_gradients(
    transforms: &[Transform],
    parameters: &Parameters,
    all: &Operands<'_>,
    threads: &Threads<'_>,
) -> Result<Vec<Option<ReplicaGradient>>> {
    reduce_with_norms(transforms, parameters, all, threads, |_, mine| Ok(mine))
}

/// Acts like [`reduce_to_gradients`]. `norms` is called for transforms that need norms: it receives the sums of squares
/// of this worker's gradients, and returns those of all workers.
pub(crate) fn reduce_with_norms(
    transforms: &[Transform],
    parameters: &Parameters,
    all: &Operands<'_>,
    threads: &Threads<'_>,
    mut norms: impl FnMut(&[VariableOperands<'_>], Vec<(usize, f64)>) -> Result<Vec<(usize, f64)>>,
) -> Result<Vec<Option<ReplicaGradient>>> {
    if transforms.iter().any(Transform::reads_values) {
        parameters.sync_to_host(&Vec::new())?;
    }
    let variables = all.variables();
    let resolved = resolve(transforms, parameters, &variables, threads, |mine| norms(&variables, mine))?;
    collect(parameters, &variables, &resolved, threads)
}

/// Reduces and transforms gradients on all threads. Returns a gradient for each variable that has one on at least one
/// replica.
fn collect(
    parameters: &Parameters,
    variables: &[VariableOperands<'_>],
    resolved: &ResolvedTransforms,
    threads: &Threads<'_>,
) -> Result<Vec<Option<ReplicaGradient>>> {
    let values = Values::open(variables, resolved);
    let parts = WorkSplit::partition(threads.count, values.ranges(variables)?).each(threads, |ranges| {
        let of = |range: &FullRange<'_>| match range {
            EitherFloat::F32(range) => {
                let (rows, values) = range.to_vec(resolved);
                (range.variable, rows, EitherFloat::F32(values))
            }
            EitherFloat::F64(range) => {
                let (rows, values) = range.to_vec(resolved);
                (range.variable, rows, EitherFloat::F64(values))
            }
        };
        Ok(ranges.iter().map(of).collect::<Vec<_>>())
    })?;
    let mut whole: Vec<Option<(Option<Vec<usize>>, Elements)>> = vec![None; parameters.variables.len()];
    // This includes variables without an element or a row, which have no parts.
    for variable in variables {
        let (rows, values) = (variable.by_row().then(Vec::new), Elements::none(variable.variable.dtype()));
        whole[variable.index] = Some((rows, values));
    }
    // Parts are in the order of the parameters.
    for (variable, more_rows, more) in parts.into_iter().flatten() {
        let Some((rows, values)) = &mut whole[variable] else { continue };
        if let (Some(rows), Some(more)) = (rows, more_rows) {
            rows.extend(more);
        }
        match (values, more) {
            // The part of a single thread is not copied.
            (EitherFloat::F32(values), EitherFloat::F32(more)) if values.is_empty() => *values = more,
            (EitherFloat::F64(values), EitherFloat::F64(more)) if values.is_empty() => *values = more,
            (EitherFloat::F32(values), EitherFloat::F32(more)) => values.extend(more),
            (EitherFloat::F64(values), EitherFloat::F64(more)) => values.extend(more),
            _ => {}
        }
    }
    let gradient = |(whole, (_, variable)): (Option<_>, &(String, candle_core::Var))| {
        let Some((rows, values)) = whole else { return Ok(None) };
        let (shape, device) = (variable.shape(), variable.device());
        Ok(Some(match (rows, values) {
            (Some(rows), values) => ReplicaGradient::Rows(Rows::new(rows, values)),
            (None, EitherFloat::F32(values)) => {
                ReplicaGradient::Dense(Dense::Host(Tensor::from_vec(values, shape, device)?))
            }
            (None, EitherFloat::F64(values)) => {
                ReplicaGradient::Dense(Dense::Host(Tensor::from_vec(values, shape, device)?))
            }
        }))
    };
    whole.into_iter().zip(&parameters.variables).map(gradient).collect()
}

/// Calls a closure of the program with each gradient, and returns the changed gradients.
pub(crate) fn apply_closure(
    closure: &GradientFn,
    parameters: &Parameters,
    mut gradients: Vec<Option<ReplicaGradient>>,
) -> Result<Vec<Option<ReplicaGradient>>> {
    for (index, (name, variable)) in parameters.variables.iter().enumerate() {
        let Some(gradient) = gradients[index].take() else { continue };
        let gradient = Gradient::from_reduced(gradient, variable)?;
        // On the thread that does this for all replicas, a panic would only be reported by replica 0.
        let changed = catch_unwind(AssertUnwindSafe(|| closure(name, gradient)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        gradients[index] = Some(parameters.check(index, changed)?.into_host(variable)?);
    }
    Ok(gradients)
}

/// Returns the gradients of a single replica, multiplied by `weight` and transformed.
pub(crate) fn transform_own(
    transforms: &[Transform],
    parameters: &Parameters,
    weight: f64,
    gradients: &[Option<ReplicaGradient>],
) -> Result<Vec<Option<ReplicaGradient>>> {
    let mut made: Option<Vec<Option<ReplicaGradient>>> = None;
    for part in split_after_closures(transforms) {
        let all = made.as_deref().map_or((weight, gradients), |made| (1., made));
        let mut now =
            reduce_to_gradients(part, parameters, &Operands::new(parameters, &[all], 1)?, &Threads::alone())?;
        if let Some(closure) = part.last().and_then(Transform::closure) {
            now = apply_closure(closure, parameters, now)?;
        }
        made = Some(now);
    }
    match made {
        Some(made) => Ok(made),
        None => {
            let operands = Operands::new(parameters, &[(weight, gradients)], 1)?;
            reduce_to_gradients(&[], parameters, &operands, &Threads::alone())
        }
    }
}

/// Splits a list of transforms after each closure.
pub(crate) fn split_after_closures(transforms: &[Transform]) -> impl Iterator<Item = &[Transform]> {
    transforms.split_inclusive(|transform| transform.closure().is_some())
}

/// Computes the norms that transforms need, if there are any, and returns the transforms with these norms. `all`
/// receives the sums of squares of this worker and returns those of all workers.
pub(crate) fn resolve(
    transforms: &[Transform],
    parameters: &Parameters,
    variables: &[VariableOperands<'_>],
    threads: &Threads<'_>,
    mut all: impl FnMut(Vec<(usize, f64)>) -> Result<Vec<(usize, f64)>>,
) -> Result<ResolvedTransforms> {
    ResolvedTransforms::new(transforms, parameters.variables.len(), |resolved| {
        let values = Values::open(variables, resolved);
        let squares =
            WorkSplit::partition(threads.count, values.ranges(variables)?).each(threads, |ranges| {
                let of = |range: &FullRange<'_>| match range {
                    EitherFloat::F32(range) => range.squares(resolved),
                    EitherFloat::F64(range) => range.squares(resolved),
                };
                Ok(ranges.iter().flat_map(of).collect::<Vec<_>>())
            })?;
        all(squares.into_iter().flatten().collect())
    })
}
