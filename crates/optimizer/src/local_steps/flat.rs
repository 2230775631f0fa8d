//! The values of all trained variables, as one vector for each dtype.

use super::outer;
use crate::parameters::Parameters;
use crate::update::locked::{LOCKED, Locked, with_locked};
use candle_core::{DType, Var};
use distribute_base::Result;
use distribute_base::internal::with_elements;
use distribute_checkpoint::Reader;
use distribute_core::internal::{read_as, require_names};
use distribute_tensor::HostTensor;

/// A number for each element of each trained variable, in the order of the variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Flat {
    pub(super) f32: Vec<f32>,
    pub(super) f64: Vec<f64>,
}

impl Flat {
    /// Returns the values of the variables on the host.
    pub(super) fn of(parameters: &Parameters) -> Result<Self> {
        let memory = |is_f64| {
            let those = |(_, variable): &&(String, Var)| (variable.dtype() == DType::F64) == is_f64;
            parameters.variables.iter().filter(those).map(|(_, variable)| variable.elem_count()).sum()
        };
        let mut flat = Self { f32: Vec::with_capacity(memory(false)), f64: Vec::with_capacity(memory(true)) };
        for (_, variable) in parameters.variables.iter().filter(|(_, variable)| variable.elem_count() > 0) {
            match variable.dtype() {
                DType::F64 => with_elements(variable, |values: &[f64]| flat.f64.extend_from_slice(values))?,
                _ => with_elements(variable, |values: &[f32]| flat.f32.extend_from_slice(values))?,
            }
        }
        Ok(flat)
    }

    /// Writes the numbers to the variables on the host.
    pub(super) fn write_to(&self, parameters: &Parameters) -> Result<()> {
        let (mut f32, mut f64) = (self.f32.as_slice(), self.f64.as_slice());
        write_each(parameters, |_, values| match values {
            Locked::F32(values) => values.copy_from_slice(take(&mut f32, values.len())),
            Locked::F64(values) => values.copy_from_slice(take(&mut f64, values.len())),
        })
    }

    /// Returns the same number of zeros.
    pub(super) fn zeros(&self) -> Self {
        Self { f32: vec![0.; self.f32.len()], f64: vec![0.; self.f64.len()] }
    }

    /// Changes the numbers by a step of SGD with Nesterov momentum; `decay` is the fraction of the momentum that is
    /// kept.
    pub(super) fn descend(
        &mut self,
        gradient: &Self,
        momentum: &mut Self,
        learning_rate: f64,
        decay: f64,
    ) -> Result<()> {
        outer::descend(&mut self.f32, &gradient.f32, &mut momentum.f32, learning_rate, decay)?;
        outer::descend(&mut self.f64, &gradient.f64, &mut momentum.f64, learning_rate, decay)?;
        Ok(())
    }

    /// Returns the name of each variable and its numbers.
    pub(super) fn tensors<'a>(&self, parameters: &'a Parameters) -> Result<Vec<(&'a str, HostTensor)>> {
        let (mut f32, mut f64) = (self.f32.as_slice(), self.f64.as_slice());
        let tensor = |(name, variable): &'a (String, Var)| {
            let (count, dims) = (variable.elem_count(), variable.dims());
            let value = match variable.dtype() {
                DType::F64 => HostTensor::new(take(&mut f64, count).to_vec(), dims)?,
                _ => HostTensor::new(take(&mut f32, count).to_vec(), dims)?,
            };
            Ok((name.as_str(), value))
        };
        parameters.variables.iter().map(tensor).collect()
    }

    /// Reads the numbers of all variables from a checkpoint, under the names that `name` returns. Returns `None` if the
    /// checkpoint has none of them.
    pub(super) fn from_checkpoint(
        from: &Reader,
        parameters: &Parameters,
        name: impl Fn(&str) -> String,
    ) -> Result<Option<Self>> {
        let names: Vec<_> = parameters.variables.iter().map(|(variable, _)| name(variable)).collect();
        if !names.iter().any(|name| from.contains(name)) {
            return Ok(None);
        }
        require_names(from, &names)?;
        let mut flat = Self::default();
        for (name, (_, variable)) in names.iter().zip(&parameters.variables) {
            let dims = variable.dims();
            match variable.dtype() {
                DType::F64 => flat
                    .f64
                    .extend(read_as(from, name, distribute_tensor::DType::F64, dims)?.into_vec::<f64>()?),
                _ => flat
                    .f32
                    .extend(read_as(from, name, distribute_tensor::DType::F32, dims)?.into_vec::<f32>()?),
            }
        }
        Ok(Some(flat))
    }
}

/// Calls `write` with the index and the elements of each variable on the host.
pub(super) fn write_each(parameters: &Parameters, mut write: impl FnMut(usize, Locked<'_>)) -> Result<()> {
    for (first, variables) in (0..).step_by(LOCKED).zip(parameters.variables.chunks(LOCKED)) {
        let variables: Vec<&Var> = variables.iter().map(|(_, variable)| variable).collect();
        with_locked(&variables, |all| {
            all.into_iter().zip(first..).for_each(|(values, number)| write(number, values));
            Ok(())
        })?;
    }
    Ok(())
}

/// Splits off and returns the first `count` numbers, or all if there are fewer.
fn take<'a, F>(numbers: &mut &'a [F], count: usize) -> &'a [F] {
    let (taken, rest) = numbers.split_at(count.min(numbers.len()));
    *numbers = rest;
    taken
}
