//! What a rule keeps beside one variable.

use crate::{Error, Result};
use candle_core::{DType, Tensor, Var};
use distribute_optim::SlotSpec;
use std::any::Any;

/// How many values a rule may keep beside each element.
pub(super) const MOST_SLOTS: usize = 4;

/// What a rule keeps beside one variable: a vector for each slot, of the variable's length, or of the range of it that this worker
/// owns.
#[derive(Debug)]
pub(super) enum Slots {
    F32(Vec<Vec<f32>>),
    F64(Vec<Vec<f64>>),
}

impl Slots {
    /// Those before the first step, of so many elements.
    pub(super) fn new(name: &str, variable: &Var, layout: &[SlotSpec], n: usize) -> Result<Self> {
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

    /// Those of a certain element type, if these are.
    pub(super) fn of<F: 'static>(&self) -> Option<&Vec<Vec<F>>> {
        match self {
            Slots::F32(slots) => (slots as &dyn Any).downcast_ref(),
            Slots::F64(slots) => (slots as &dyn Any).downcast_ref(),
        }
    }

    /// The elements of one slot.
    pub(super) fn elements(&self, index: usize) -> &[u8] {
        match self {
            Slots::F32(slots) => bytemuck::cast_slice(&slots[index]),
            Slots::F64(slots) => bytemuck::cast_slice(&slots[index]),
        }
    }

    /// The memory that they take.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Slots::F32(slots) => slots.iter().map(|slot| size_of_val(slot.as_slice())).sum(),
            Slots::F64(slots) => slots.iter().map(|slot| size_of_val(slot.as_slice())).sum(),
        }
    }

    /// A copy of one slot, of the shape of its variable.
    pub(super) fn tensor(&self, index: usize, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        Ok(match self {
            Slots::F32(slots) => Tensor::from_slice(&slots[index], shape, device)?,
            Slots::F64(slots) => Tensor::from_slice(&slots[index], shape, device)?,
        })
    }
}
