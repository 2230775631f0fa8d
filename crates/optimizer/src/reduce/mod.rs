//! Sums over replicas, transformed: each replica makes them of the range that it owns.

pub(crate) mod collect;
pub(crate) mod operands;
pub(crate) mod range;
pub(crate) mod row_records;
pub(crate) mod rows;
pub(crate) mod split;
pub(crate) mod workers;

use crate::Trained;
use crate::gradients::Gradient;
use crate::reduce::collect::collect;
use crate::reduce::operands::{Operands, Values, Variable, Whole};
use crate::reduce::split::Owners;
use crate::sync::Threads;
use crate::transform::{Each, Settled, Transform};
use distribute_base::internal::{Any, LocalGradient, panicked};
use distribute_base::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The gradients, reduced and transformed, as tensors of their own. Closures are left out.
pub(crate) fn reduced(
    transforms: &[Transform],
    trained: &Trained,
    all: &Operands<'_>,
    threads: &Threads<'_>,
) -> Result<Vec<Option<LocalGradient>>> {
    if transforms.iter().any(Transform::reads_values) {
        trained.bring_back(&[])?;
    }
    let variables = all.variables();
    let settled = settle(transforms, trained, &variables, threads, Ok)?;
    collect(trained, &variables, &settled, threads)
}

/// Gradients as a closure of the user's changes them.
pub(crate) fn changed(
    closure: &Each,
    trained: &Trained,
    mut gradients: Vec<Option<LocalGradient>>,
) -> Result<Vec<Option<LocalGradient>>> {
    for (index, (name, variable)) in trained.variables.iter().enumerate() {
        let Some(gradient) = gradients[index].take() else { continue };
        let gradient = Gradient::from_local(gradient, variable)?;
        // On the thread that does this for all, a panic would be told of replica 0 only.
        let changed = catch_unwind(AssertUnwindSafe(|| closure(name, gradient)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        gradients[index] = Some(trained.check(index, changed)?.into_local(variable)?);
    }
    Ok(gradients)
}

/// A replica's own gradients, transformed.
pub(crate) fn transformed(
    transforms: &[Transform],
    trained: &Trained,
    weight: f64,
    gradients: &[Option<LocalGradient>],
) -> Result<Vec<Option<LocalGradient>>> {
    let mut made: Option<Vec<Option<LocalGradient>>> = None;
    for part in parts(transforms) {
        let all = made.as_deref().map_or((weight, gradients), |made| (1., made));
        let mut now = reduced(part, trained, &Operands::new(trained, &[all], 1)?, &Threads::alone())?;
        if let Some(closure) = part.last().and_then(Transform::closure) {
            now = changed(closure, trained, now)?;
        }
        made = Some(now);
    }
    made.map_or_else(|| Err(Error::invalid("transform", "there are none")), Ok)
}

/// Transforms, cut behind each closure.
pub(crate) fn parts(transforms: &[Transform]) -> impl Iterator<Item = &[Transform]> {
    transforms.split_inclusive(|transform| transform.closure().is_some())
}

/// Makes transforms ready by the norms of gradients, if they ask for some. `all` makes the squares of what is here into those of
/// everything.
pub(crate) fn settle(
    transforms: &[Transform],
    trained: &Trained,
    variables: &[Variable<'_>],
    threads: &Threads<'_>,
    mut all: impl FnMut(Vec<(usize, f64)>) -> Result<Vec<(usize, f64)>>,
) -> Result<Settled> {
    Settled::new(transforms, trained.variables.len(), |settled| {
        let values = Values::open(variables, settled);
        let squares =
            Owners::partition(threads.count, values.ranges(variables)?).each(threads, |ranges| {
                let of = |range: &Whole<'_>| match range {
                    Any::F32(range) => range.squares(settled),
                    Any::F64(range) => range.squares(settled),
                };
                Ok(ranges.iter().flat_map(of).collect::<Vec<_>>())
            })?;
        all(squares.into_iter().flatten().collect())
    })
}
