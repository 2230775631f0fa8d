//! The slots of one variable: the state that an update rule keeps for it.

use candle_core::{DType, Tensor, Var};
use distribute_base::internal::{to_device, to_host};
use distribute_base::{Error, Result};
use distribute_checkpoint::Reader;
use distribute_core::internal::{read_as, read_elements};
use distribute_optim::{Rule, SlotSpec};
use distribute_tensor::Element;
use std::any::Any;
use std::ops::Range;

/// The maximum number of slots of a rule.
pub(crate) const MAX_SLOTS: usize = 4;

/// Returns the slots of a rule, or an error if there are too many.
pub(crate) fn layout(operation: &'static str, rule: &dyn Rule) -> Result<Vec<SlotSpec>> {
    let layout = rule.slots();
    if layout.len() > MAX_SLOTS {
        let (name, count) = (rule.name(), layout.len());
        let reason = format!("rule {name} keeps {count} slots, but at most {MAX_SLOTS} are supported");
        return Err(Error::invalid(operation, reason));
    }
    Ok(layout)
}

/// The slots of one variable. On the host, each slot is a vector with the length of the variable, or of the range that
/// this worker updates. For a variable that is updated on devices, slots are tensors on these devices.
#[derive(Debug)]
pub(crate) enum Slots {
    F32(Vec<Vec<f32>>),
    F64(Vec<Vec<f64>>),
    /// The slots of each local replica, with the shape of the variable. All replicas have the same values.
    OnDevices(Vec<Vec<Tensor>>),
}

impl Slots {
    /// Creates slots with their initial values and `n` elements each. Returns an error if the variable is not a CPU
    /// tensor of f32 or f64.
    pub(crate) fn new(name: &str, variable: &Var, layout: &[SlotSpec], n: usize) -> Result<Self> {
        match (variable.dtype(), variable.device().is_cpu()) {
            (DType::F32, true) => {
                Ok(Slots::F32(layout.iter().map(|slot| vec![slot.initial as f32; n]).collect()))
            }
            (DType::F64, true) => Ok(Slots::F64(layout.iter().map(|slot| vec![slot.initial; n]).collect())),
            (dtype, _) => Err(Error::invalid(
                "Optimizer::new",
                format!(
                    "variable {name} is {dtype:?} on {:?}; optimizers train f32 and f64 on the CPU",
                    variable.device().location()
                ),
            )),
        }
    }

    /// Reads the slots of a variable from a checkpoint. `names` are the names of the slots in the checkpoint. `range`
    /// selects the elements; `None` selects all.
    pub(crate) fn from_checkpoint(
        from: &Reader,
        names: &[String],
        variable: &Var,
        range: Option<Range<usize>>,
    ) -> Result<Self> {
        Ok(match variable.dtype() {
            DType::F64 => Slots::F64(read(from, names, variable, &range)?),
            _ => Slots::F32(read(from, names, variable, &range)?),
        })
    }

    /// Returns the slots if they are on the host and have element type `F`.
    pub(crate) fn of<F: 'static>(&self) -> Option<&Vec<Vec<F>>> {
        match self {
            Slots::F32(slots) => (slots as &dyn Any).downcast_ref(),
            Slots::F64(slots) => (slots as &dyn Any).downcast_ref(),
            Slots::OnDevices(_) => None,
        }
    }

    /// Returns the elements of one slot as bytes; `None` if the slots are on devices or there is no such slot.
    pub(crate) fn elements(&self, index: usize) -> Option<&[u8]> {
        match self {
            Slots::F32(slots) => Some(bytemuck::cast_slice(slots.get(index)?)),
            Slots::F64(slots) => Some(bytemuck::cast_slice(slots.get(index)?)),
            Slots::OnDevices(_) => None,
        }
    }

    /// Returns the size of the slots in this process, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Slots::F32(slots) => slots.iter().map(|slot| size_of_val(slot.as_slice())).sum(),
            Slots::F64(slots) => slots.iter().map(|slot| size_of_val(slot.as_slice())).sum(),
            Slots::OnDevices(all) => {
                all.iter().flatten().map(|slot| slot.elem_count() * slot.dtype().size_in_bytes()).sum()
            }
        }
    }

    /// Returns a copy of one slot. It has the shape of the variable, and is on the variable's device.
    pub(crate) fn tensor(&self, index: usize, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        Ok(match self {
            Slots::F32(slots) => Tensor::from_slice(&slots[index], shape, device)?,
            Slots::F64(slots) => Tensor::from_slice(&slots[index], shape, device)?,
            Slots::OnDevices(all) => to_device(&to_host(&all[0][index])?, device)?.copy()?,
        })
    }

    /// Returns the slots of each replica, on the devices of `copies`. Slots that are on the host are moved there
    /// first.
    pub(crate) fn on_devices(&mut self, copies: &[&Var]) -> Result<&mut [Vec<Tensor>]> {
        let count = match self {
            Slots::F32(slots) => Some(slots.len()),
            Slots::F64(slots) => Some(slots.len()),
            Slots::OnDevices(_) => None,
        };
        if let Some(count) = count {
            let of = |copy: &&Var| (0..count).map(|slot| self.tensor(slot, copy)).collect();
            *self = Slots::OnDevices(copies.iter().map(of).collect::<Result<_>>()?);
        }
        match self {
            Slots::OnDevices(all) => Ok(all),
            Slots::F32(_) | Slots::F64(_) => Ok(&mut []),
        }
    }

    /// Moves the slots to the host if they are on devices. Waits for one of the devices.
    pub(crate) fn sync_to_host(&mut self, variable: &Var) -> Result<()> {
        let Slots::OnDevices(all) = self else { return Ok(()) };
        let first = all.first().map_or(&[][..], Vec::as_slice);
        let flat = first.iter().map(|slot| Ok(to_host(slot)?.flatten_all()?));
        let flat = flat.collect::<Result<Vec<_>>>()?;
        *self = match variable.dtype() {
            DType::F64 => Slots::F64(flat.iter().map(Tensor::to_vec1).collect::<candle_core::Result<_>>()?),
            _ => Slots::F32(flat.iter().map(Tensor::to_vec1).collect::<candle_core::Result<_>>()?),
        };
        Ok(())
    }
}

fn read<F: Element>(
    from: &Reader,
    names: &[String],
    variable: &Var,
    range: &Option<Range<usize>>,
) -> Result<Vec<Vec<F>>> {
    let one = |name: &String| match range {
        None => Ok(read_as(from, name, F::DTYPE, variable.dims())?.into_vec()?),
        Some(range) => read_elements(from, name, F::DTYPE, variable.dims(), range),
    };
    names.iter().map(one).collect()
}
