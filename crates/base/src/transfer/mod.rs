//! The transfer of tensors between the host and devices.
//!
//! | function | what it does |
//! |---|---|
//! | [`to_device`] | copies a tensor to a device |
//! | [`to_host`] | copies a tensor to the host, and waits for its device |
//! | [`known_on_host`] | returns integers of a device, without a wait if input has brought them there |

#[cfg(feature = "cuda")]
mod held;
mod host_twins;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(any(feature = "cuda", test))]
mod pool;
#[cfg(feature = "cuda")]
pub use held::held;

use candle_core::shape::ShapeWithOneHole;
use candle_core::{Device, Result, Tensor, WithDType};
use distribute_tensor::without_elements;
pub use host_twins::HostTwins;
pub use host_twins::known_on_host;

/// The size in bytes up to which CUDA copies pageable memory without a wait. The thread of a larger copy waits until
/// the GPU has finished all earlier work.
const AT_ONCE: usize = 64 << 10;

/// Copies a tensor to a device with candle, and handles the cases that candle leaves out:
///
/// - A tensor without elements: CUDA refuses copies of no bytes.
/// - A large tensor goes to a GPU through pinned memory, so that no thread waits for the GPU's other work.
/// - A tensor that is copied from a GPU to another is kept until the copy is done, even if it is dropped earlier.
///   cudarc (0.19) makes the copy wait for the writes of the tensor, but records the copy on the source's stream too
///   early, and so frees the source too early.
/// - A tensor of another handle of the same GPU: neither candle nor cudarc orders the streams of two handles, so this
///   function waits for all work of the GPU, before and after the copy.
///
/// # Errors
/// candle's, if the device is out of memory or does not have the dtype.
pub fn to_device(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device().same_device(device) {
        return Ok(tensor.clone());
    }
    if tensor.elem_count() == 0 {
        return without_elements(tensor.dims(), tensor.dtype(), device);
    }
    if tensor.elem_count() * tensor.dtype().size_in_bytes() > AT_ONCE
        && let Some(there) = by_pinned_memory(tensor, device)
    {
        return Ok(there);
    }
    #[cfg(feature = "cuda")]
    if let (Device::Cuda(from), Device::Cuda(to)) = (tensor.device(), device) {
        return between(tensor, from, to);
    }
    tensor.to_device(device)
}

/// Creates a tensor of some numbers on a device.
///
/// # Errors
/// - The errors of [`to_device`].
/// - candle's, if the shape has another number of elements.
pub fn from_vec<T: WithDType>(
    numbers: Vec<T>,
    shape: impl ShapeWithOneHole,
    device: &Device,
) -> Result<Tensor> {
    to_device(&Tensor::from_vec(numbers, shape, &Device::Cpu)?, device)
}

#[cfg(feature = "cuda")]
fn between(tensor: &Tensor, from: &candle_core::CudaDevice, to: &candle_core::CudaDevice) -> Result<Tensor> {
    use candle_core::cuda_backend::WrapErr;
    let (from, stream) = (from.cuda_stream(), to.cuda_stream());
    let same_gpu = from.context().ordinal() == stream.context().ordinal();
    if same_gpu {
        from.context().synchronize().w()?;
    }
    let there = tensor.to_device(&Device::Cuda(to.clone()))?;
    if same_gpu {
        stream.context().synchronize().w()?;
    } else {
        // Later work of the first GPU, such as freeing the tensor, waits for the copy.
        from.wait(&stream.record_event(None).w()?).w()?;
    }
    Ok(there)
}

/// Copies a tensor from the memory of the CPU to a GPU through pinned memory, without a wait for the GPU's other work.
///
/// Returns `None` for tensors and devices of other kinds, for tensors with a gradient, and if there is no pinned
/// memory, which is logged.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub fn by_pinned_memory(tensor: &Tensor, device: &Device) -> Option<Tensor> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return pinned::Pinned::of(device)?.carry(tensor);
    }
    None
}

/// Copies a tensor to the memory of the CPU. Waits for its device.
///
/// # Errors
/// candle's, of the device.
pub fn to_host(tensor: &Tensor) -> Result<Tensor> {
    WAITS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    tensor.to_device(&Device::Cpu)
}

/// The number of times that this process has waited for a device, for tests.
pub static WAITS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::device::DeviceName;
    use distribute_testing::skipped;

    // INV-72
    #[test]
    fn a_tensor_that_is_copied_between_gpus_is_kept_until_the_copy_is_done() {
        let gpu = |number| DeviceName::gpu(number).to_candle();
        let (from, to) = match (gpu(0), gpu(1)) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(error), _) | (_, Err(error)) => return skipped(error),
        };
        for number in 0..20u32 {
            let there = to_device(&Tensor::full(number, 1000, &from).unwrap(), &to).unwrap();
            // The first GPU has finished its work, and uses the memory again.
            from.synchronize().unwrap();
            let next = Tensor::full(77u32, 1000, &from).unwrap();
            from.synchronize().unwrap();
            assert_eq!(there.to_vec1::<u32>().unwrap(), [number; 1000]);
            drop(next);
        }
    }

    // INV-72
    #[test]
    fn a_tensor_of_another_handle_of_the_gpu_is_complete_when_it_is_copied() {
        let to = match DeviceName::gpu(0).to_candle() {
            Ok(to) => to,
            Err(error) => return skipped(error),
        };
        let other = Device::new_cuda(0).unwrap();
        for number in 0..20u32 {
            let there = to_device(&Tensor::full(number, 1000, &other).unwrap(), &to).unwrap();
            assert_eq!((&there + &there).unwrap().to_vec1::<u32>().unwrap(), [2 * number; 1000]);
        }
    }
}
