//! The first element that is NaN or infinite.

use crate::Parameters;
use candle_core::{DType, Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{Number, ReplicaGradient, with_elements};

/// Returns whether all gradients of a replica that are on the host are finite.
pub(crate) fn all_finite(parameters: &Parameters, gradients: &[Option<ReplicaGradient>]) -> Result<bool> {
    for ((_, variable), gradient) in parameters.variables.iter().zip(gradients) {
        if let Some(gradient) = gradient
            && !gradient.is_on_device()
            && first_of(gradient, variable)?.is_some()
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first element of a gradient on the host that is not finite.
pub(crate) fn first_of(gradient: &ReplicaGradient, variable: &Var) -> Result<Option<(usize, f64)>> {
    Ok(match (gradient, variable.dtype()) {
        (ReplicaGradient::Dense(dense), DType::F32) => dense.with_elements(first::<f32>)?,
        (ReplicaGradient::Dense(dense), _) => dense.with_elements(first::<f64>)?,
        (ReplicaGradient::Rows(rows), dtype) => {
            let found = match dtype {
                DType::F32 => rows.elements().and_then(first::<f32>),
                _ => rows.elements().and_then(first::<f64>),
            };
            let width = variable.dims().get(1..).map_or(1, |rest| rest.iter().product::<usize>()).max(1);
            found.map(|(at, value)| {
                (rows.rows[at / width].saturating_mul(width).saturating_add(at % width), value)
            })
        }
    })
}

pub(crate) fn first_in(tensor: &Tensor) -> Result<Option<(usize, f64)>> {
    Ok(match tensor.dtype() {
        DType::F32 => with_elements(tensor, first::<f32>)?,
        _ => with_elements(tensor, first::<f64>)?,
    })
}

fn first<F: Number>(values: &[F]) -> Option<(usize, f64)> {
    /// Elements that are looked at without a branch.
    const RUN: usize = 1024;
    let zero = F::of(0.);
    // A finite number times 0 is 0, all others are NaN.
    let is_finite = |x: F| x * zero == zero;
    let run = values.chunks(RUN).position(|run| !run.iter().fold(true, |all, x| all & is_finite(*x)))?;
    let at = run * RUN + values[run * RUN..].iter().position(|x| !is_finite(*x))?;
    Some((at, value(values[at])))
}

/// Infinity, negative infinity or NaN: whichever it is.
fn value<F: Number>(x: F) -> f64 {
    let zero = F::of(0.);
    match (x > zero, x < zero) {
        (true, _) => f64::INFINITY,
        (_, true) => f64::NEG_INFINITY,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_not_finite_is_found_wherever_it_is() {
        let mut values = vec![f32::MAX; 5000];
        values[7] = -f32::MAX;
        assert_eq!(first(&values), None);
        assert_eq!(first::<f64>(&[]), None);
        for at in [0, 1023, 1024, 4999] {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut values = values.clone();
                values[at..].fill(bad);
                let (found, value) = first(&values).unwrap();
                assert_eq!(
                    (found, value.to_bits() == f64::from(bad).to_bits() || value.is_nan()),
                    (at, true)
                );
            }
        }
    }
}
