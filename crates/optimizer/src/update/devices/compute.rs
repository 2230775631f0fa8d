//! The computation of updates on devices. Rules are applied to the copies of all replicas, as candle's operations or as
//! a single kernel.

use crate::groups::Rules;
use crate::parameters::{Copies, Parameters};
use crate::slots::Slots;
use candle_core::Tensor;
use distribute_base::internal::ReplicaGradient;
use distribute_base::{Error, Result};
use distribute_kernels::Programs;

/// The new values of one variable, before they are written.
pub(crate) struct DeviceUpdate {
    variable: usize,
    replicas: Vec<ReplicaUpdate>,
}

struct ReplicaUpdate {
    /// The indices of the rows that change; `None` for all rows. The tensor is allocated before anything is written, so
    /// that running out of memory does not leave an incomplete update.
    index: Option<Tensor>,
    /// The new values of the variable, followed by those of its slots.
    values: Vec<Tensor>,
}

/// An update of the copies of all replicas, with rules that only compute. Each replica has its own copy of the slots.
pub(crate) struct DeviceUpdater<'a> {
    pub(crate) rules: &'a Rules<'a>,
    pub(crate) parameters: &'a Parameters,
    pub(crate) copies: &'a Copies<'a>,
}

impl DeviceUpdater<'_> {
    /// Applies the rules to the reduced gradients of each replica. Returns the results without writing them.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a rule has no program for this step because it compares elements, although it had
    ///   one for earlier steps.
    /// - Candle's error, for example if the device is out of memory.
    pub(crate) fn compute(
        &self,
        gradients: &[Vec<Option<ReplicaGradient>>],
        slots: &mut [Slots],
    ) -> Result<Vec<DeviceUpdate>> {
        let (mut all, mut programs) = (Vec::new(), Programs::default());
        for (variable, (copies, slots)) in self.copies.iter().zip(slots).enumerate() {
            let Some(copies) = copies else { continue };
            let of_variable = gradients.iter().map(|of_replica| of_replica.get(variable)?.as_ref());
            let Some(of_variable) = of_variable.collect::<Option<Vec<_>>>() else { continue };
            let (rule, step) = self.rules.of(variable);
            let Some(program) = rule.program(step)? else {
                let reason = format!(
                    "rule {} compares elements of {} in this step, but did not in others, so it cannot continue on a \
                     device; compare with Float::select_at_most",
                    rule.name(),
                    self.parameters.variables[variable].0
                );
                return Err(Error::invalid("optimizer step", reason));
            };
            let slots = slots.on_devices(copies)?;
            let (mut indices, mut inputs) = (Vec::new(), Vec::new());
            for ((gradient, copy), slots) in of_variable.into_iter().zip(copies).zip(slots.iter()) {
                let (index, values) = if rule.moves_absent_rows() {
                    (None, gradient.to_dense_on(copy)?)
                } else {
                    let Some(values) = gradient.on_device() else { continue };
                    (gradient.index_on_device()?, values.clone())
                };
                let part = |whole: &Tensor| select_rows(whole, index.as_ref());
                let mut of_replica = vec![part(&copy.as_detached_tensor())?, values.detach()];
                of_replica.extend(slots.iter().map(part).collect::<Result<Vec<_>>>()?);
                let index =
                    index.map(|index| index.unsqueeze(1)?.broadcast_as(of_replica[0].shape())?.contiguous());
                indices.push(index.transpose()?);
                inputs.push(of_replica);
            }
            let made = programs.run(rule.name(), &program, &inputs)?;
            let replicas: Vec<_> = indices
                .into_iter()
                .zip(made)
                .map(|(index, values)| ReplicaUpdate { index, values })
                .collect();
            if !replicas.is_empty() {
                all.push(DeviceUpdate { variable, replicas });
            }
        }
        Ok(all)
    }

    /// Writes the results to the copies and slots.
    ///
    /// # Errors
    /// Returns candle's error if a device fails. Some copies may then have their previous values, and others their new
    /// ones.
    pub(crate) fn write(&self, made: Vec<DeviceUpdate>, slots: &mut [Slots]) -> Result<()> {
        for DeviceUpdate { variable, replicas } in made {
            let (Some(Some(copies)), Some(Some(device_copies))) =
                (self.copies.get(variable), self.parameters.device_copies.get(variable))
            else {
                continue;
            };
            let all_slots = slots[variable].on_devices(copies)?;
            device_copies.write_on_devices(|| {
                for ((ReplicaUpdate { index, values }, copy), slots) in
                    replicas.into_iter().zip(copies).zip(all_slots)
                {
                    let mut values = values.into_iter();
                    if let Some(value) = values.next() {
                        match &index {
                            Some(index) => write_rows(copy, index, &value)?,
                            None => copy.set(&value)?,
                        }
                    }
                    for (slot, value) in slots.iter_mut().zip(values) {
                        match &index {
                            Some(index) => write_rows(slot, index, &value)?,
                            None => *slot = value,
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Returns the rows of a variable or slot at the indices in `index`; `None` selects all of it.
pub(super) fn select_rows(whole: &Tensor, index: Option<&Tensor>) -> Result<Tensor> {
    Ok(match index {
        Some(index) => as_rows(whole)?.index_select(index, 0)?,
        None => whole.clone(),
    })
}

/// Returns a view of a tensor as a matrix of rows. The view shares the tensor's memory.
fn as_rows(whole: &Tensor) -> Result<Tensor> {
    let Some(height) = whole.dims().first() else {
        return Err(Error::invalid("optimizer step", "a scalar has no rows"));
    };
    let width: usize = whole.dims()[1..].iter().product();
    Ok(whole.reshape((*height, width))?)
}

/// Writes rows into a tensor, in place, at the indices in `index`.
fn write_rows(whole: &Tensor, index: &Tensor, rows: &Tensor) -> Result<()> {
    if rows.elem_count() == 0 {
        return Ok(());
    }
    Ok(as_rows(&whole.detach())?.scatter_set(index, rows, 0)?)
}
