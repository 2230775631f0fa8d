//! The slots of one variable: the state that a rule keeps for it.

use candle_core::{DType, Tensor, Var};
use distribute_base::internal::{to_device, to_host};
use distribute_base::{Error, Result};
use distribute_checkpoint::Reader;
use distribute_core::internal::{read_as, read_elements};
use distribute_optim::SlotSpec;
use distribute_tensor::Element;
use std::any::Any;
use std::ops::Range;

/// The largest number of slots of a rule.
pub(crate) const MOST_SLOTS: usize = 4;

/// The slots of one variable: a vector for each slot, of the variable's length or of the range that this worker
/// updates. For a variable that is updated on devices, tensors there.
#[derive(Debug)]
pub(crate) enum Slots {
    F32(Vec<Vec<f32>>),
    F64(Vec<Vec<f64>>),
    /// The slots of each local replica, of the variable's shape. All replicas have the same values.
    OnDevices(Vec<Vec<Tensor>>),
}

impl Slots {
    /// Creates the slots before the first step, with `n` elements each.
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

    /// The slots that a checkpoint has of a variable under these names, or those of its elements that are `mine`.
    pub(crate) fn saved(
        from: &Reader,
        names: &[String],
        variable: &Var,
        mine: Option<Range<usize>>,
    ) -> Result<Self> {
        Ok(match variable.dtype() {
            DType::F64 => Slots::F64(read(from, names, variable, &mine)?),
            _ => Slots::F32(read(from, names, variable, &mine)?),
        })
    }

    /// Returns the slots, if they are on the host and of this element type.
    pub(crate) fn of<F: 'static>(&self) -> Option<&Vec<Vec<F>>> {
        match self {
            Slots::F32(slots) => (slots as &dyn Any).downcast_ref(),
            Slots::F64(slots) => (slots as &dyn Any).downcast_ref(),
            Slots::OnDevices(_) => None,
        }
    }

    /// The elements of one slot, on the host.
    pub(crate) fn elements(&self, index: usize) -> Option<&[u8]> {
        match self {
            Slots::F32(slots) => Some(bytemuck::cast_slice(slots.get(index)?)),
            Slots::F64(slots) => Some(bytemuck::cast_slice(slots.get(index)?)),
            Slots::OnDevices(_) => None,
        }
    }

    /// The memory that they take in this process.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Slots::F32(slots) => slots.iter().map(|slot| size_of_val(slot.as_slice())).sum(),
            Slots::F64(slots) => slots.iter().map(|slot| size_of_val(slot.as_slice())).sum(),
            Slots::OnDevices(all) => {
                all.iter().flatten().map(|slot| slot.elem_count() * slot.dtype().size_in_bytes()).sum()
            }
        }
    }

    /// A copy of one slot, of the shape of its variable and where that is.
    pub(crate) fn tensor(&self, index: usize, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        Ok(match self {
            Slots::F32(slots) => Tensor::from_slice(&slots[index], shape, device)?,
            Slots::F64(slots) => Tensor::from_slice(&slots[index], shape, device)?,
            Slots::OnDevices(all) => to_device(&to_host(&all[0][index])?, device)?.copy()?,
        })
    }

    /// Returns the slots of each replica on the devices of the variable's copies. Slots on the host are copied there
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

    /// Brings them to the host, if they are on devices. Waits for one.
    pub(crate) fn bring_back(&mut self, variable: &Var) -> Result<()> {
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
    mine: &Option<Range<usize>>,
) -> Result<Vec<Vec<F>>> {
    let one = |name: &String| match mine {
        None => Ok(read_as(from, name, F::DTYPE, variable.dims())?.into_vec()?),
        Some(mine) => read_elements(from, name, F::DTYPE, variable.dims(), mine),
    };
    names.iter().map(one).collect()
}
