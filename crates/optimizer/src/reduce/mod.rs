//! The reduction of gradients: sums over replicas, transformed, of which each thread makes its part.
//!
//! | module | what it is |
//! |---|---|
//! | `operands` | the gradients that are added up, opened for reading |
//! | `range`, `rows` | a range of a variable's gradient on all replicas |
//! | `split` | the parts of all variables that threads work on |
//! | `workers`, `row_records` | the exchange with other workers |

pub(crate) mod operands;
pub(crate) mod range;
pub(crate) mod row_records;
pub(crate) mod rows;
pub(crate) mod split;
pub(crate) mod workers;

use crate::gradients::Gradient;
use crate::parameters::Parameters;
use crate::reduce::operands::{Operands, Values, Variable, Whole};
use crate::reduce::split::WorkSplit;
use crate::sync::Threads;
use crate::transform::{Each, ResolvedTransforms, Transform};
use candle_core::Tensor;
use distribute_base::internal::{Any, Dense, Elements, ReplicaGradient, Rows, panicked};
use distribute_base::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The gradients of one replica, one for each variable, and their weight.
pub(crate) type Weighted<'r> = (f64, &'r [Option<ReplicaGradient>]);

/// The gradients, reduced and transformed, as tensors of their own. Closures are left out.
pub(crate) fn reduced(
    transforms: &[Transform],
    parameters: &Parameters,
    all: &Operands<'_>,
    threads: &Threads<'_>,
) -> Result<Vec<Option<ReplicaGradient>>> {
    if transforms.iter().any(Transform::reads_values) {
        parameters.bring_back(&Vec::new())?;
    }
    let variables = all.variables();
    let resolved = resolve(transforms, parameters, &variables, threads, Ok)?;
    collect(parameters, &variables, &resolved, threads)
}

/// Reduces and transforms, all threads at once. Returns the gradient of each variable that has one on some replica.
fn collect(
    parameters: &Parameters,
    variables: &[Variable<'_>],
    resolved: &ResolvedTransforms,
    threads: &Threads<'_>,
) -> Result<Vec<Option<ReplicaGradient>>> {
    let values = Values::open(variables, resolved);
    let parts = WorkSplit::partition(threads.count, values.ranges(variables)?).each(threads, |ranges| {
        let of = |range: &Whole<'_>| match range {
            Any::F32(range) => {
                let (rows, values) = range.whole(resolved);
                (range.variable, rows, Any::F32(values))
            }
            Any::F64(range) => {
                let (rows, values) = range.whole(resolved);
                (range.variable, rows, Any::F64(values))
            }
        };
        Ok(ranges.iter().map(of).collect::<Vec<_>>())
    })?;
    let mut whole: Vec<Option<(Option<Vec<usize>>, Elements)>> = vec![None; parameters.variables.len()];
    // Also of those without an element or a row, of which there are no parts.
    for variable in variables {
        let (rows, values) = (variable.by_row().then(Vec::new), Elements::none(variable.variable.dtype()));
        whole[variable.index] = Some((rows, values));
    }
    // Parts come in the order of the parameters.
    for (variable, more_rows, more) in parts.into_iter().flatten() {
        let Some((rows, values)) = &mut whole[variable] else { continue };
        if let (Some(rows), Some(more)) = (rows, more_rows) {
            rows.extend(more);
        }
        match (values, more) {
            // The part of a lone thread is not copied.
            (Any::F32(values), Any::F32(more)) if values.is_empty() => *values = more,
            (Any::F64(values), Any::F64(more)) if values.is_empty() => *values = more,
            (Any::F32(values), Any::F32(more)) => values.extend(more),
            (Any::F64(values), Any::F64(more)) => values.extend(more),
            _ => {}
        }
    }
    let gradient = |(whole, (_, variable)): (Option<_>, &(String, candle_core::Var))| {
        let Some((rows, values)) = whole else { return Ok(None) };
        let (shape, device) = (variable.shape(), variable.device());
        Ok(Some(match (rows, values) {
            (Some(rows), values) => ReplicaGradient::Rows(Rows::new(rows, values)),
            (None, Any::F32(values)) => {
                ReplicaGradient::Dense(Dense::Host(Tensor::from_vec(values, shape, device)?))
            }
            (None, Any::F64(values)) => {
                ReplicaGradient::Dense(Dense::Host(Tensor::from_vec(values, shape, device)?))
            }
        }))
    };
    whole.into_iter().zip(&parameters.variables).map(gradient).collect()
}

/// Gradients as a closure of the user's changes them.
pub(crate) fn changed(
    closure: &Each,
    parameters: &Parameters,
    mut gradients: Vec<Option<ReplicaGradient>>,
) -> Result<Vec<Option<ReplicaGradient>>> {
    for (index, (name, variable)) in parameters.variables.iter().enumerate() {
        let Some(gradient) = gradients[index].take() else { continue };
        let gradient = Gradient::from_reduced(gradient, variable)?;
        // On the thread that does this for all, a panic would be told of replica 0 only.
        let changed = catch_unwind(AssertUnwindSafe(|| closure(name, gradient)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        gradients[index] = Some(parameters.check(index, changed)?.on_host(variable)?);
    }
    Ok(gradients)
}

/// A replica's own gradients, transformed.
pub(crate) fn transformed(
    transforms: &[Transform],
    parameters: &Parameters,
    weight: f64,
    gradients: &[Option<ReplicaGradient>],
) -> Result<Vec<Option<ReplicaGradient>>> {
    let mut made: Option<Vec<Option<ReplicaGradient>>> = None;
    for part in parts(transforms) {
        let all = made.as_deref().map_or((weight, gradients), |made| (1., made));
        let mut now = reduced(part, parameters, &Operands::new(parameters, &[all], 1)?, &Threads::alone())?;
        if let Some(closure) = part.last().and_then(Transform::closure) {
            now = changed(closure, parameters, now)?;
        }
        made = Some(now);
    }
    made.map_or_else(|| Err(Error::invalid("transform", "there are none")), Ok)
}

/// Transforms, cut after each closure.
pub(crate) fn parts(transforms: &[Transform]) -> impl Iterator<Item = &[Transform]> {
    transforms.split_inclusive(|transform| transform.closure().is_some())
}

/// Resolves transforms by the norms of gradients, if they ask for some. `all` makes the squares of what is here into
/// those of everything.
pub(crate) fn resolve(
    transforms: &[Transform],
    parameters: &Parameters,
    variables: &[Variable<'_>],
    threads: &Threads<'_>,
    mut all: impl FnMut(Vec<(usize, f64)>) -> Result<Vec<(usize, f64)>>,
) -> Result<ResolvedTransforms> {
    ResolvedTransforms::new(transforms, parameters.variables.len(), |resolved| {
        let values = Values::open(variables, resolved);
        let squares =
            WorkSplit::partition(threads.count, values.ranges(variables)?).each(threads, |ranges| {
                let of = |range: &Whole<'_>| match range {
                    Any::F32(range) => range.squares(resolved),
                    Any::F64(range) => range.squares(resolved),
                };
                Ok(ranges.iter().flat_map(of).collect::<Vec<_>>())
            })?;
        all(squares.into_iter().flatten().collect())
    })
}
