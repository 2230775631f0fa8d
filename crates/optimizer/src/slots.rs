//! The slots of one variable: the state that an update rule keeps for it.

use candle_core::{DType, Tensor, Var};
use distribute_base::internal::{to_device, to_host};
use distribute_base::{Error, Result};
use distribute_checkpoint::Reader;
use distribute_core::internal::{read_as, read_elements};
use distribute_decisions::internal::SlotShare;
use distribute_optim::{Rule, SlotShape, SlotSpec, Unit};
use distribute_tensor::Element;
use std::any::Any;
use std::ops::Range;

/// The maximum number of slots of a rule.
pub(crate) const MAX_SLOTS: usize = 4;

/// Returns the slots of a rule, after checks.
///
/// # Errors
///
/// - [`Error::InvalidArgument`]: there are too many slots, their shapes do not fit the unit of the rule, or the rule
///   needs complete rows or variables and may do more than compute.
pub(crate) fn layout(operation: &'static str, rule: &dyn Rule) -> Result<Vec<SlotSpec>> {
    let (layout, unit) = (rule.slots(), rule.unit());
    let fits = |slot: &SlotSpec| match unit {
        Unit::Element => slot.shape == SlotShape::Variable,
        Unit::Row => slot.shape.per_row(1).is_some(),
        Unit::Variable => true,
    };
    if let Some(slot) = layout.iter().find(|slot| !fits(slot)) {
        let reason = format!(
            "slot {} of rule {} has the shape {:?}, but the rule updates each {unit:?} by itself: return a larger unit",
            slot.name,
            rule.name(),
            slot.shape
        );
        return Err(Error::invalid(operation, reason));
    }
    if unit != Unit::Element && !rule.only_computes() {
        let reason = format!(
            "rule {} needs a complete {unit:?} at once, so it is applied in place; if it only does arithmetic, return \
             true from only_computes",
            rule.name()
        );
        return Err(Error::invalid(operation, reason));
    }
    if layout.len() > MAX_SLOTS {
        let (name, count) = (rule.name(), layout.len());
        let reason = format!("rule {name} keeps {count} slots, but at most {MAX_SLOTS} are supported");
        return Err(Error::invalid(operation, reason));
    }
    Ok(layout)
}

/// Returns the range of a slot's elements that belong to the range `at` of a variable. `slot` and `elements` are the
/// numbers of elements of the slot and of the variable. If the slot has one number for each row, `at` must consist of
/// complete rows.
pub(crate) fn slot_range(
    at: &Range<usize>,
    (slot, elements): (usize, usize),
    row_len: usize,
) -> Range<usize> {
    if slot == elements { at.clone() } else { at.start / row_len.max(1)..at.end / row_len.max(1) }
}

/// The slots of one variable. On the host, each slot is a vector of the elements of its [`SlotShare`]. For a variable
/// that is updated on devices, slots are tensors on these devices.
#[derive(Clone, Debug)]
pub(crate) enum Slots {
    F32(Vec<Vec<f32>>),
    F64(Vec<Vec<f64>>),
    /// The slots of each local replica, with the shape of the variable. All replicas have the same values. Rules with
    /// slots of another shape are not applied on devices.
    OnDevices(Vec<Vec<Tensor>>),
}

impl Slots {
    /// Creates slots with their initial values. Returns an error if the variable is not a CPU tensor of f32 or f64.
    pub(crate) fn new(name: &str, variable: &Var, layout: &[SlotSpec], share: &SlotShare) -> Result<Self> {
        let all = layout.iter().map(|slot| (slot.initial, share.elements(slot.shape, variable.dims())));
        match (variable.dtype(), variable.device().is_cpu()) {
            (DType::F32, true) => Ok(Slots::F32(all.map(|(value, n)| vec![value as f32; n]).collect())),
            (DType::F64, true) => Ok(Slots::F64(all.map(|(value, n)| vec![value; n]).collect())),
            (dtype, _) => Err(Error::invalid(
                "Optimizer::new",
                format!(
                    "variable {name} is {dtype:?} on {:?}; optimizers train f32 and f64 on the CPU",
                    variable.device().location()
                ),
            )),
        }
    }

    /// Reads, from a checkpoint, the slots that this process keeps for a variable. `names` are the names of the slots
    /// in the checkpoint, in the order of `layout`.
    pub(crate) fn from_checkpoint(
        from: &Reader,
        names: &[String],
        variable: &Var,
        layout: &[SlotSpec],
        share: &SlotShare,
    ) -> Result<Self> {
        let shapes = layout.iter().map(|slot| slot.shape.dims(variable.dims()));
        let all: Vec<_> = names.iter().zip(shapes).collect();
        Ok(match variable.dtype() {
            DType::F64 => Slots::F64(read(from, &all, share)?),
            _ => Slots::F32(read(from, &all, share)?),
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

    /// Returns the elements of all slots as bytes, one slot after the other. There are none if they are on devices.
    pub(crate) fn all_elements(&self) -> Vec<&[u8]> {
        match self {
            Slots::F32(slots) => slots.iter().map(|slot| bytemuck::cast_slice(slot)).collect(),
            Slots::F64(slots) => slots.iter().map(|slot| bytemuck::cast_slice(slot)).collect(),
            Slots::OnDevices(_) => Vec::new(),
        }
    }

    /// Returns the elements of all slots as bytes, for writing.
    pub(crate) fn all_elements_mut(&mut self) -> Vec<&mut [u8]> {
        match self {
            Slots::F32(slots) => slots.iter_mut().map(|slot| bytemuck::cast_slice_mut(slot)).collect(),
            Slots::F64(slots) => slots.iter_mut().map(|slot| bytemuck::cast_slice_mut(slot)).collect(),
            Slots::OnDevices(_) => Vec::new(),
        }
    }

    /// Returns the type of the elements of slots on the host.
    pub(crate) fn dtype(&self) -> distribute_tensor::DType {
        match self {
            Slots::F64(_) => distribute_tensor::DType::F64,
            Slots::F32(_) | Slots::OnDevices(_) => distribute_tensor::DType::F32,
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

    /// Returns a copy of one slot, on the variable's device.
    pub(crate) fn tensor(&self, index: usize, shape: SlotShape, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (shape.dims(variable.dims()), variable.device());
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
            let of =
                |copy: &&Var| (0..count).map(|slot| self.tensor(slot, SlotShape::Variable, copy)).collect();
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

fn read<F: Element>(from: &Reader, all: &[(&String, Vec<usize>)], share: &SlotShare) -> Result<Vec<Vec<F>>> {
    let one = |(name, dims): &(&String, Vec<usize>)| match share {
        SlotShare::All => Ok(read_as(from, name, F::DTYPE, dims)?.into_vec()?),
        SlotShare::Range(range) => read_elements(from, name, F::DTYPE, dims, range),
        SlotShare::Elsewhere => read_elements(from, name, F::DTYPE, dims, &(0..0)),
    };
    all.iter().map(one).collect()
}
