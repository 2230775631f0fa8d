//! [`DeviceCopier`]: copies tensors of a dataset to a device.

use super::{HostCopies, through_pinned_memory, to_device};
use candle_core::{CpuStorage, Device, Result, Storage, Tensor};
use std::sync::Arc;

/// A copier of a dataset's tensors to one device.
pub struct DeviceCopier {
    device: Device,
    host_copies: Arc<HostCopies>,
}

impl DeviceCopier {
    /// Creates a copier to `device`.
    pub fn new(device: Device) -> Self {
        Self { device, host_copies: HostCopies::new() }
    }

    /// Copies a tensor to the device. Returns the tensor itself if it is already there. The host's copy of a small
    /// tensor of integers is kept for a while, so that ids and labels can be read without waiting for the device.
    ///
    /// # Errors
    /// Returns candle's error if the device has too little memory, or does not support the dtype.
    pub fn copy(&self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.device().same_device(&self.device) {
            return Ok(tensor.clone());
        }
        let keeps_host_copy = HostCopies::accepts(tensor);
        // A tensor that is kept must not keep the memory of a complete dataset.
        let here = if keeps_host_copy { in_own_memory(tensor)? } else { tensor.clone() };
        let there = match through_pinned_memory(&here, &self.device) {
            Some(there) => there,
            None => to_device(&in_own_memory(&here)?, &self.device)?,
        };
        if keeps_host_copy {
            self.host_copies.insert(here, there.clone());
        }
        Ok(there)
    }
}

/// Returns a tensor that shares no memory with a larger one: a copy if `tensor` is a slice, or if the size of its
/// memory is unknown; otherwise `tensor` itself. candle copies all the memory that a tensor is stored in, and a batch
/// may be a slice of a dataset in memory.
fn in_own_memory(tensor: &Tensor) -> Result<Tensor> {
    let is_all = {
        let (storage, layout) = tensor.storage_and_layout();
        match &*storage {
            Storage::Cpu(all) => layout.is_contiguous() && len(all) == tensor.elem_count(),
            // The size of the memory is unknown there.
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
    fn only_the_used_part_of_a_tensor_is_transferred() {
        let all = Tensor::arange(0f32, 600., &Device::Cpu).unwrap().reshape((100, 6)).unwrap();
        let columns = all.narrow(1, 2, 3).unwrap();
        for part in [all.narrow(0, 0, 4).unwrap(), all.narrow(0, 40, 4).unwrap(), columns, all.t().unwrap()] {
            let own = in_own_memory(&part).unwrap();
            assert_eq!(memory_of(&own), part.elem_count());
            assert!(own.is_contiguous());
            let numbers = |tensor: &Tensor| tensor.to_vec2::<f32>().unwrap();
            assert_eq!(numbers(&own), numbers(&part));
        }
        assert_eq!(in_own_memory(&all).unwrap().id(), all.id(), "all of it is copied for nothing");
    }

    /// Runs `body` with a CUDA GPU that has no other work, in a separate process. Skips the test if there is no GPU.
    #[cfg(feature = "cuda")]
    fn with_gpu(test: &str, body: impl FnOnce(candle_core::CudaDevice) + Send + 'static) {
        use distribute_testing::{child, skipped, watched};
        if child::part().is_none() {
            let command = child::command(&format!("transfer::device_copier::tests::{test}"), "by itself");
            child::output(command, std::time::Duration::from_secs(60));
            return;
        }
        match crate::DeviceName::gpu(0).to_candle() {
            Ok(Device::Cuda(device)) => watched(|| body(device)),
            Ok(other) => panic!("{:?} is no GPU of CUDA", other.location()),
            Err(error) => skipped(error),
        }
    }

    // IN-4, ITER-2
    #[cfg(feature = "cuda")]
    #[test]
    fn batches_with_and_without_rows_are_transferred_unless_already_there() {
        with_gpu("batches_with_and_without_rows_are_transferred_unless_already_there", |device| {
            let device = Device::Cuda(device);
            let copier = DeviceCopier::new(device.clone());
            let here = Tensor::arange(0f32, 600., &Device::Cpu).unwrap().reshape((100, 6)).unwrap();
            let there = copier.copy(&here).unwrap();
            assert_eq!(there.to_vec2::<f32>().unwrap(), here.to_vec2::<f32>().unwrap());
            assert_eq!(copier.copy(&there).unwrap().id(), there.id());
            let empty = copier.copy(&here.narrow(0, 4, 0).unwrap()).unwrap();
            assert!(empty.device().same_device(&device));
            assert_eq!((empty.dims(), empty.dtype()), (&[0, 6][..], candle_core::DType::F32));
        });
    }

    // INV-69
    #[cfg(feature = "cuda")]
    #[test]
    fn ids_of_another_gpu_are_read_where_they_are() {
        let to = match (crate::DeviceName::gpu(0).to_candle(), crate::DeviceName::gpu(1).to_candle()) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(error), _) | (_, Err(error)) => return distribute_testing::skipped(error),
        };
        let ids = Tensor::new(&[[1u32, 2], [3, 0]], &to.0).unwrap();
        let there = DeviceCopier::new(to.1).copy(&ids).unwrap();
        let known = crate::internal::host_value(&there.get_on_dim(1, 0).unwrap()).unwrap();
        assert_eq!(known.to_vec1::<u32>().unwrap(), [1, 3]);
    }
}
