//! The contribution of this worker to an outer step, and where each variable is in it.

use super::flat::Flat;
use super::outer;
use crate::parameters::Parameters;
use crate::reduce::compressed::{Contribution, contributions};
use crate::sync::Threads;
use candle_core::{DType, Var};
use distribute_base::internal::{Number, with_elements};
use distribute_base::{Error, Result};
use std::ops::Range;

/// The contribution of this worker to an outer step: its weights or, with the opposite sign, what it has changed since
/// the last one.
pub(super) struct Mine {
    /// The numbers of each variable with error feedback, divided by the number of workers, in ascending order. They
    /// include the residual.
    pub(super) compressed: Vec<Contribution>,
    /// The numbers of all other variables of f32, one variable after another.
    pub(super) f32: Vec<f32>,
    /// The numbers of all variables of f64.
    pub(super) f64: Vec<f64>,
}

impl Mine {
    /// Returns the contribution of this worker, whose variables must be on the host. `agreed` contains the weights
    /// after the last outer step; `None` if workers contribute their weights.
    pub(super) fn new(parameters: &Parameters, agreed: Option<&Flat>, threads: &Threads<'_>) -> Result<Self> {
        let all = places(parameters);
        if let Some(agreed) = agreed {
            let end = |is_f64| {
                let those = all.iter().rfind(|place| (place.kind == Kind::F64) == is_f64);
                those.map_or(0, |place| place.all.end)
            };
            if (agreed.f32.len(), agreed.f64.len()) != (end(false), end(true)) {
                let reason = "the weights after the last outer step are those of other variables";
                return Err(Error::invalid("outer step", reason));
            }
        }
        let (compressed, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|place| place.kind == Kind::Compressed);
        let weight = 1. / parameters.strategy.world().workers() as f32;
        let compressed = contributions(threads, compressed, |Place { number, all, .. }| {
            let contribution = (0, number);
            Ok(with_elements(variable(parameters, number), |after: &[f32]| match agreed {
                None => Contribution::new(parameters, contribution, weight, after.iter().copied()),
                Some(agreed) => {
                    let changed = outer::changed(slice(&agreed.f32, &all), after);
                    Contribution::new(parameters, contribution, weight, changed)
                }
            })?)
        })?;
        let memory =
            |kind| others.iter().filter(|place| place.kind == kind).map(|place| place.all.len()).sum();
        let (mut f32, mut f64) =
            (Vec::with_capacity(memory(Kind::F32)), Vec::with_capacity(memory(Kind::F64)));
        for Place { number, kind, all, .. } in others {
            let variable = variable(parameters, number);
            match kind {
                Kind::F64 => add(&mut f64, variable, agreed.map(|agreed| slice(&agreed.f64, &all)))?,
                _ => add(&mut f32, variable, agreed.map(|agreed| slice(&agreed.f32, &all)))?,
            }
        }
        Ok(Self { compressed, f32, f64 })
    }
}

/// Adds the contribution of a variable to `all`.
fn add<F: Number>(all: &mut Vec<F>, variable: &Var, agreed: Option<&[F]>) -> Result<()> {
    Ok(with_elements(variable, |after: &[F]| match agreed {
        None => all.extend_from_slice(after),
        Some(agreed) => all.extend(outer::changed(agreed, after)),
    })?)
}

/// The form in which a variable is sent in an outer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A form with error feedback.
    Compressed,
    /// The type f32, or numbers rounded to 16 bits.
    F32,
    /// The type f64.
    F64,
}

/// The place of a variable in the vectors of an outer step.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The index of the variable.
    pub(super) number: usize,
    pub(super) kind: Kind,
    /// The elements of the variable among those of all variables of its dtype, as in a [`Flat`].
    pub(super) all: Range<usize>,
    /// The elements of the variable among those of all variables of its kind.
    pub(super) of_kind: Range<usize>,
}

/// Returns the places of the variables that have elements, in their order.
pub(super) fn places(parameters: &Parameters) -> Vec<Place> {
    let (mut f32, mut f64, mut plain, mut compressed) = (0, 0, 0, 0);
    let variables = parameters.variables.iter().zip(&parameters.codecs).enumerate();
    let place = |(number, ((_, variable), codec)): (usize, (&(String, Var), &Option<_>))| {
        let (kind, all, of_kind) = match (variable.dtype(), codec) {
            (DType::F64, _) => (Kind::F64, &mut f64, None),
            (_, Some(_)) => (Kind::Compressed, &mut f32, Some(&mut compressed)),
            (_, None) => (Kind::F32, &mut f32, Some(&mut plain)),
        };
        let next = |end: &mut usize| {
            let first = *end;
            *end += variable.elem_count();
            first..*end
        };
        let all = next(all);
        let of_kind = of_kind.map_or_else(|| all.clone(), next);
        Place { number, kind, all, of_kind }
    };
    variables.map(place).filter(|place| !place.all.is_empty()).collect()
}

fn variable(parameters: &Parameters, number: usize) -> &Var {
    &parameters.variables[number].1
}

/// Returns a range of a vector, which is empty if the vector is shorter.
pub(super) fn slice<'a, F>(all: &'a [F], range: &Range<usize>) -> &'a [F] {
    all.get(range.clone()).unwrap_or_default()
}
