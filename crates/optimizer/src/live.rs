//! Slots that a checkpoint copies while the program continues.

use crate::progress::busy_error;
use crate::slots::Slots;
use distribute_checkpoint::{HeldTensors, LiveTensors, SourceError};
use distribute_tensor::{Element, HostTensor};
use std::sync::{Arc, RwLock, RwLockReadGuard, TryLockError};

/// Slots on the host that a checkpoint copies while the program continues. Before a step first writes to them, it waits
/// until they are copied.
pub(crate) struct LiveSlots {
    pub(crate) slots: Arc<RwLock<Vec<Slots>>>,
    pub(crate) tensors: Vec<LiveSlot>,
}

/// One slot of a variable among [`LiveSlots`].
pub(crate) struct LiveSlot {
    /// The index of the variable.
    pub(crate) variable: usize,
    /// The index of the slot.
    pub(crate) slot: usize,
    pub(crate) dims: Vec<usize>,
}

impl LiveTensors for LiveSlots {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        let slots = match self.slots.try_read() {
            Ok(slots) => slots,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A step that has locked the slots may wait for a variable that the save holds.
            Err(TryLockError::WouldBlock) => return Err(busy_error("Checkpoint::save").into()),
        };
        Ok(Box::new(HeldSlots { slots, tensors: &self.tensors }))
    }
}

struct HeldSlots<'a> {
    slots: RwLockReadGuard<'a, Vec<Slots>>,
    tensors: &'a [LiveSlot],
}

impl HeldTensors for HeldSlots<'_> {
    fn copy(&self, index: usize) -> Result<HostTensor, SourceError> {
        let found =
            self.tensors.get(index).and_then(|tensor| Some((tensor, self.slots.get(tensor.variable)?)));
        let copy = match found {
            Some((tensor, Slots::F32(slots))) => copy(slots, tensor),
            Some((tensor, Slots::F64(slots))) => copy(slots, tensor),
            Some((_, Slots::OnDevices(_))) | None => None,
        };
        copy.ok_or_else(|| "the optimizer has no such slot on the host".into()).and_then(|copy| Ok(copy?))
    }
}

fn copy<F: Element>(
    slots: &[Vec<F>],
    tensor: &LiveSlot,
) -> Option<Result<HostTensor, distribute_tensor::Error>> {
    Some(HostTensor::new(slots.get(tensor.slot)?.clone(), tensor.dims.clone()))
}
