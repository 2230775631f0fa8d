//! The computation on devices: rules applied to the copies of all replicas, by candle's operations or a kernel for
//! each.

use super::fused;
use crate::groups::Rules;
use crate::parameters::{Copies, Parameters};
use crate::slots::Slots;
use candle_core::Tensor;
use distribute_base::internal::ReplicaGradient;
use distribute_base::{Error, Result};

/// The result of the rule for one variable, before it is written.
pub(crate) struct Made {
    variable: usize,
    of_replicas: Vec<OfReplica>,
}

struct OfReplica {
    /// The row of each element; `None` for all rows. It is allocated before anything is written, so that a lack of
    /// memory breaks nothing.
    index: Option<Tensor>,
    /// The new values of the variable and of its slots, in that order.
    values: Vec<Tensor>,
}

/// The update of the copies of all replicas, by rules that only compute. Each replica has slots of its own, with the
/// same values.
pub(crate) struct OnDevices<'a> {
    pub(crate) rules: &'a Rules<'a>,
    pub(crate) parameters: &'a Parameters,
    pub(crate) copies: &'a Copies<'a>,
}

impl OnDevices<'_> {
    /// Applies the rules to the reduced gradients that each replica has. Nothing is written yet.
    ///
    /// # Errors
    /// candle's, for example if the device is out of memory.
    pub(crate) fn make(
        &self,
        gradients: &[Vec<Option<ReplicaGradient>>],
        slots: &mut [Slots],
    ) -> Result<Vec<Made>> {
        let (mut all, mut programs) = (Vec::new(), fused::Programs::default());
        for (variable, (copies, slots)) in self.copies.iter().zip(slots).enumerate() {
            let Some(copies) = copies else { continue };
            let of_variable = gradients.iter().map(|of_replica| of_replica.get(variable)?.as_ref());
            let Some(of_variable) = of_variable.collect::<Option<Vec<_>>>() else { continue };
            let (rule, step) = self.rules.of(variable);
            let Some(program) = rule.program(step)? else {
                let reason = format!(
                    "rule {} compares elements of {} in this step, and did not in others: it cannot go on on a device; compare by \
                     Float::select_at_most",
                    rule.name(),
                    self.parameters.variables[variable].0
                );
                return Err(Error::invalid("optimizer step", reason));
            };
            let slots = slots.on_devices(copies)?;
            let (mut indices, mut inputs) = (Vec::new(), Vec::new());
            for ((gradient, copy), slots) in of_variable.into_iter().zip(copies).zip(slots.iter()) {
                let (index, values) = if rule.moves_absent_rows() {
                    (None, gradient.spread_on(copy)?)
                } else {
                    let Some(values) = gradient.on_device() else { continue };
                    (gradient.index_on_device()?, values.clone())
                };
                let part = |whole: &Tensor| part_of(whole, index.as_ref());
                let mut of_replica = vec![part(&copy.as_detached_tensor())?, values.detach()];
                of_replica.extend(slots.iter().map(part).collect::<Result<Vec<_>>>()?);
                let index =
                    index.map(|index| index.unsqueeze(1)?.broadcast_as(of_replica[0].shape())?.contiguous());
                indices.push(index.transpose()?);
                inputs.push(of_replica);
            }
            let made = programs.run(rule.name(), &program, &inputs)?;
            let of_replicas: Vec<_> =
                indices.into_iter().zip(made).map(|(index, values)| OfReplica { index, values }).collect();
            if !of_replicas.is_empty() {
                all.push(Made { variable, of_replicas });
            }
        }
        Ok(all)
    }

    /// Writes the results.
    ///
    /// # Errors
    /// candle's, of a device. Copies may then have the values before or after the step.
    pub(crate) fn write(&self, made: Vec<Made>, slots: &mut [Slots]) -> Result<()> {
        for Made { variable, of_replicas } in made {
            let (Some(Some(copies)), Some(Some(device_copies))) =
                (self.copies.get(variable), self.parameters.device_copies.get(variable))
            else {
                continue;
            };
            let all_slots = slots[variable].on_devices(copies)?;
            device_copies.advance(|| {
                for ((OfReplica { index, values }, copy), slots) in
                    of_replicas.into_iter().zip(copies).zip(all_slots)
                {
                    let mut values = values.into_iter();
                    if let Some(value) = values.next() {
                        match &index {
                            Some(index) => put_rows(copy, index, &value)?,
                            None => copy.set(&value)?,
                        }
                    }
                    for (slot, value) in slots.iter_mut().zip(values) {
                        match &index {
                            Some(index) => put_rows(slot, index, &value)?,
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

/// Returns some rows of a variable or a slot, or all of it without an index.
pub(super) fn part_of(whole: &Tensor, index: Option<&Tensor>) -> Result<Tensor> {
    Ok(match index {
        Some(index) => as_rows(whole)?.index_select(index, 0)?,
        None => whole.clone(),
    })
}

/// Returns a view as a matrix of rows, in the same memory.
fn as_rows(whole: &Tensor) -> Result<Tensor> {
    let Some(height) = whole.dims().first() else {
        return Err(Error::invalid("optimizer step", "a scalar has no rows"));
    };
    let width: usize = whole.dims()[1..].iter().product();
    Ok(whole.reshape((*height, width))?)
}

/// Sets some rows of a tensor in place.
fn put_rows(whole: &Tensor, index: &Tensor, rows: &Tensor) -> Result<()> {
    if rows.elem_count() == 0 {
        return Ok(());
    }
    Ok(as_rows(&whole.detach())?.scatter_set(index, rows, 0)?)
}
