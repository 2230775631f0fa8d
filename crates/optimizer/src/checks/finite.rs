//! The search for elements that are NaN or infinite, or become infinite when they are sent.

use crate::Parameters;
use candle_core::{DType, Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{Number, ReplicaGradient, with_elements};
use distribute_core::strategy::Wire;

/// Returns `true` if all gradients of a replica that are on the host are finite, also in the type in which they are
/// sent. Gradients on devices are ignored.
pub(crate) fn all_finite(parameters: &Parameters, gradients: &[Option<ReplicaGradient>]) -> Result<bool> {
    for ((_, variable), gradient) in parameters.variables.iter().zip(gradients) {
        if let Some(gradient) = gradient
            && !gradient.is_on_device()
            && first_in_gradient(gradient, variable, parameters.wire())?.is_some()
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the position and the value of the first element of a gradient on the host that is not finite, or is too
/// large for `wire`, the type in which f32 is sent. The value of an element that is too large is an infinity.
pub(crate) fn first_in_gradient(
    gradient: &ReplicaGradient,
    variable: &Var,
    wire: Wire,
) -> Result<Option<(usize, f64)>> {
    let (limit, none) = (wire.limit(), f64::INFINITY);
    Ok(match (gradient, variable.dtype()) {
        (ReplicaGradient::Dense(dense), DType::F32) => dense.with_elements(|all| first(all, limit))?,
        (ReplicaGradient::Dense(dense), _) => dense.with_elements(|all| first(all, none))?,
        (ReplicaGradient::Rows(rows), dtype) => {
            let found = match dtype {
                DType::F32 => rows.elements().and_then(|all| first(all, limit)),
                _ => rows.elements().and_then(|all| first(all, none)),
            };
            let width = variable.dims().get(1..).map_or(1, |rest| rest.iter().product::<usize>()).max(1);
            found.map(|(at, value)| {
                (rows.rows[at / width].saturating_mul(width).saturating_add(at % width), value)
            })
        }
    })
}

pub(crate) fn first_in_tensor(tensor: &Tensor) -> Result<Option<(usize, f64)>> {
    Ok(match tensor.dtype() {
        DType::F32 => with_elements(tensor, |all| first(all, f32::INFINITY))?,
        _ => with_elements(tensor, |all| first(all, f64::INFINITY))?,
    })
}

/// Finds the first element that is NaN or not below `limit` in absolute value. Returns its index, and NaN or an
/// infinity with the element's sign.
fn first<F: Number>(values: &[F], limit: F) -> Option<(usize, f64)> {
    /// The number of elements that are checked at once, without branches.
    const RUN: usize = 1024;
    let is_finite = |x: F| distribute_optim::Float::abs(x) < limit;
    let run = values.chunks(RUN).position(|run| !run.iter().fold(true, |all, x| all & is_finite(*x)))?;
    let at = run * RUN + values[run * RUN..].iter().position(|x| !is_finite(*x))?;
    Some((at, value(values[at])))
}

/// Converts a number that is not finite, or is too large, to an infinity with its sign, or to NaN.
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
        assert_eq!(first(&values, f32::INFINITY), None);
        assert_eq!(first(&[], f64::INFINITY), None);
        assert_eq!(first(&[1., -65_519., -65_520.], Wire::F16.limit()), Some((2, f64::NEG_INFINITY)));
        for at in [0, 1023, 1024, 4999] {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut values = values.clone();
                values[at..].fill(bad);
                let (found, value) = first(&values, f32::INFINITY).unwrap();
                assert_eq!(
                    (found, value.to_bits() == f64::from(bad).to_bits() || value.is_nan()),
                    (at, true)
                );
            }
        }
    }
}
