//! Gradients, reduced and transformed, as tensors of their own.

use crate::Trained;
use crate::reduce::operands::{Values, Variable, Whole};
use crate::reduce::range::GradientRange;
use crate::reduce::split::Owners;
use crate::sync::Threads;
use crate::transform::Settled;
use candle_core::{Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{Any, Elements, LocalGradient, Number, Rows};

/// The gradient of a range of a variable, or of all of it: with the numbers of its rows, if it is by row.
struct Part {
    rows: Option<Vec<usize>>,
    values: Elements,
}

/// Reduces and transforms, all replicas together. Gives the gradient of each variable that has one on some replica.
pub(crate) fn collect(
    trained: &Trained,
    variables: &[Variable<'_>],
    settled: &Settled,
    threads: &Threads<'_>,
) -> Result<Vec<Option<LocalGradient>>> {
    let values = Values::open(variables, settled);
    let parts = Owners::partition(threads.count, values.ranges(variables)?).each(threads, |ranges| {
        let of = |range: &Whole<'_>| match range {
            Any::F32(range) => Part::of(range, settled),
            Any::F64(range) => Part::of(range, settled),
        };
        Ok(ranges.iter().map(of).collect::<Vec<_>>())
    })?;
    let mut whole: Vec<Option<Part>> = trained.variables.iter().map(|_| None).collect();
    // Also of those without an element or a row, of which there are no parts.
    for variable in variables {
        whole[variable.index] = Some(Part::none(variable));
    }
    for (variable, part) in parts.into_iter().flatten() {
        if let Some(whole) = &mut whole[variable] {
            whole.extend(part);
        }
    }
    let ready = |(whole, (_, variable)): (Option<Part>, &(String, Var))| {
        whole.map(|whole| whole.ready(variable)).transpose()
    };
    whole.into_iter().zip(&trained.variables).map(ready).collect()
}

impl Part {
    fn none(variable: &Variable<'_>) -> Self {
        Self { rows: variable.by_row().then(Vec::new), values: Elements::none(variable.variable.dtype()) }
    }

    fn of<F: Number>(range: &GradientRange<'_, F>, settled: &Settled) -> (usize, Self) {
        let (rows, values) = range.whole(settled);
        (range.variable, Self { rows, values: F::vector(values) })
    }

    /// Parts come in the order of the parameters.
    fn extend(&mut self, next: Self) {
        if let (Some(rows), Some(next)) = (&mut self.rows, next.rows) {
            rows.extend(next);
        }
        match (&mut self.values, next.values) {
            // That of one replica is not copied.
            (Any::F32(values), Any::F32(next)) if values.is_empty() => *values = next,
            (Any::F64(values), Any::F64(next)) if values.is_empty() => *values = next,
            (Any::F32(values), Any::F32(next)) => values.extend(next),
            (Any::F64(values), Any::F64(next)) => values.extend(next),
            _ => {}
        }
    }

    fn ready(self, variable: &Var) -> Result<LocalGradient> {
        let (shape, device) = (variable.shape(), variable.device());
        Ok(match (self.rows, self.values) {
            (Some(rows), values) => LocalGradient::Rows(Rows { rows, values }),
            (None, Any::F32(values)) => LocalGradient::Dense(Tensor::from_vec(values, shape, device)?),
            (None, Any::F64(values)) => LocalGradient::Dense(Tensor::from_vec(values, shape, device)?),
        })
    }
}
