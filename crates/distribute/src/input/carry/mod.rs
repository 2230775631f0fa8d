//! [`Carrier`]: how a tensor gets to a device.

#[cfg(feature = "cuda")]
mod pinned;
#[cfg(any(feature = "cuda", test))]
mod pool;

use crate::brought::Brought;
use crate::transfer::to_device;
use candle_core::{CpuStorage, Device, Result, Storage, Tensor};
use std::sync::Arc;

/// What brings tensors of a dataset to one device.
pub(super) struct Carrier {
    device: Device,
    brought: Arc<Brought>,
    #[cfg(feature = "cuda")]
    pinned: Option<Arc<pinned::Pinned>>,
}

impl Carrier {
    pub(super) fn new(device: Device) -> Self {
        Self {
            #[cfg(feature = "cuda")]
            pinned: match &device {
                Device::Cuda(device) => pinned::Pinned::of(device),
                _ => None,
            },
            device,
            brought: Brought::new(),
        }
    }

    /// The tensor on the device; itself if it is there.
    ///
    /// # Errors
    /// candle's: the device has no memory for it, or no such dtype.
    pub(super) fn carry(&self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.device().same_device(&self.device) {
            return Ok(tensor.clone());
        }
        let there = self.copy(tensor)?;
        self.brought.keep(tensor, &there);
        Ok(there)
    }

    fn copy(&self, tensor: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let Some(there) = self.pinned.as_ref().and_then(|pinned| pinned.carry(tensor)) {
            return Ok(there);
        }
        to_device(&alone(tensor)?, &self.device)
    }
}

/// The tensor with memory of its own, if it is a part of a larger one: candle brings all of the memory that a tensor is in, and a piece may
/// lie in that of the whole dataset.
fn alone(tensor: &Tensor) -> Result<Tensor> {
    let is_all = {
        let (storage, layout) = tensor.storage_and_layout();
        match &*storage {
            Storage::Cpu(all) => layout.is_contiguous() && len(all) == tensor.elem_count(),
            // How much it is, is not to be known there.
            _ => false,
        }
    };
    if is_all || tensor.elem_count() == 0 { Ok(tensor.clone()) } else { tensor.force_contiguous() }
}

fn len(storage: &CpuStorage) -> usize {
    match storage {
        CpuStorage::U8(all)
        | CpuStorage::F6E2M3(all)
        | CpuStorage::F6E3M2(all)
        | CpuStorage::F4(all)
        | CpuStorage::F8E8M0(all) => all.len(),
        CpuStorage::U32(all) => all.len(),
        CpuStorage::I16(all) => all.len(),
        CpuStorage::I32(all) => all.len(),
        CpuStorage::I64(all) => all.len(),
        CpuStorage::BF16(all) => all.len(),
        CpuStorage::F16(all) => all.len(),
        CpuStorage::F32(all) => all.len(),
        CpuStorage::F64(all) => all.len(),
        CpuStorage::F8E4M3(all) => all.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_of(tensor: &Tensor) -> usize {
        match &*tensor.storage_and_layout().0 {
            Storage::Cpu(all) => len(all),
            _ => unreachable!("it is on the CPU"),
        }
    }

    // IN-4
    #[test]
    fn of_a_part_of_a_tensor_no_more_is_brought_than_the_part() {
        let all = Tensor::arange(0f32, 600., &Device::Cpu).unwrap().reshape((100, 6)).unwrap();
        let columns = all.narrow(1, 2, 3).unwrap();
        for part in [all.narrow(0, 0, 4).unwrap(), all.narrow(0, 40, 4).unwrap(), columns, all.t().unwrap()] {
            let own = alone(&part).unwrap();
            assert_eq!(memory_of(&own), part.elem_count());
            assert!(own.is_contiguous());
            let numbers = |tensor: &Tensor| tensor.to_vec2::<f32>().unwrap();
            assert_eq!(numbers(&own), numbers(&part));
        }
        assert_eq!(alone(&all).unwrap().id(), all.id(), "all of it is copied for nothing");
    }
}
