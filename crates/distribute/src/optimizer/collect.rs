//! Gradients, reduced and transformed, as tensors of their own.

use super::Trained;
use super::contribution::Ready;
use super::owners::Owners;
use super::pass::Workers;
use super::stretch::Stretch;
use super::summed::{Values, Variable, Whole};
use super::transform::Settled;
use crate::Result;
use crate::deposit::Rows;
use crate::number::{Any, Elements, Number};
use candle_core::{Tensor, Var};

/// The gradient of a stretch of a variable, or of all of it: with the numbers of its rows, if it is by row.
struct Part {
    rows: Option<Vec<usize>>,
    values: Elements,
}

/// Reduces and transforms, all replicas together. Gives the gradient of each variable that has one on some replica.
pub(super) fn collect(
    trained: &Trained,
    variables: &[Variable<'_>],
    settled: &Settled,
    workers: &Workers<'_>,
) -> Result<Vec<Option<Ready>>> {
    let values = Values::open(variables, settled);
    let parts = Owners::deal(workers.count, values.stretches(variables)?).each(workers, |stretches| {
        let of = |stretch: &Whole<'_>| match stretch {
            Any::F32(stretch) => Part::of(stretch, settled),
            Any::F64(stretch) => Part::of(stretch, settled),
        };
        Ok(stretches.iter().map(of).collect::<Vec<_>>())
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

    fn of<F: Number>(stretch: &Stretch<'_, F>, settled: &Settled) -> (usize, Self) {
        let (rows, values) = stretch.whole(settled);
        (stretch.variable, Self { rows, values: F::vector(values) })
    }

    /// Parts come in the order of the parameters.
    fn extend(&mut self, next: Self) {
        if let (Some(rows), Some(next)) = (&mut self.rows, next.rows) {
            rows.extend(next);
        }
        match (&mut self.values, next.values) {
            (Any::F32(values), Any::F32(next)) => values.extend(next),
            (Any::F64(values), Any::F64(next)) => values.extend(next),
            _ => {}
        }
    }

    fn ready(self, variable: &Var) -> Result<Ready> {
        let (shape, device) = (variable.shape(), variable.device());
        Ok(match (self.rows, self.values) {
            (Some(rows), values) => Ready::Rows(Rows { rows, values }),
            (None, Any::F32(values)) => Ready::Dense(Tensor::from_vec(values, shape, device)?),
            (None, Any::F64(values)) => Ready::Dense(Tensor::from_vec(values, shape, device)?),
        })
    }
}
