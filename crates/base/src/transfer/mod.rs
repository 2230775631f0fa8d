//! Tensors between the host and devices: [`to_device`], [`to_host`], and what is known without a wait.

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

/// Of more than so many bytes, CUDA copies from memory of any program when the GPU has done what it was asked for
/// before, and the thread waits. Of fewer it has a copy of its own.
const AT_ONCE: usize = 64 << 10;

/// The tensor on this device, by candle's way, and what that leaves out:
///
/// - Of a tensor without elements, CUDA refuses to take nothing.
/// - Large ones go to a GPU of CUDA by pinned memory, so that nobody waits for what it computes.
/// - One that is copied from a GPU to another is kept until that is done, whoever drops it before. cudarc (0.19) lets
///   the copy wait for what writes it, but takes note of it on the source's stream before the copy, and so frees the
///   source too early.
/// - One that was made on the same GPU by another handle is ordered by nothing with what is done here: candle and
///   cudarc take no note of its stream. So all that the GPU does is waited for, before and after.
///
/// # Errors
/// candle's: the device has no memory, or no such dtype.
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

/// Numbers in the memory of the CPU, as a tensor on this device.
///
/// # Errors
/// As [`to_device`], and where the shape has another number of elements.
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
        // What the first GPU is asked for from now on, such as to free the tensor, is behind the copy.
        from.wait(&stream.record_event(None).w()?).w()?;
    }
    Ok(there)
}

/// The tensor, if it is in the memory of the CPU, on a GPU of CUDA, by a copy that waits for nothing the GPU computes.
/// `None` of others, of those with a gradient, and where there is no pinned memory, which was logged.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub fn by_pinned_memory(tensor: &Tensor, device: &Device) -> Option<Tensor> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return pinned::Pinned::of(device)?.carry(tensor);
    }
    None
}

/// The tensor in the memory of the CPU. Waits for its device.
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
    fn what_is_copied_between_gpus_is_there_until_it_is_copied() {
        let gpu = |number| DeviceName::gpu(number).to_candle();
        let (from, to) = match (gpu(0), gpu(1)) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(error), _) | (_, Err(error)) => return skipped(error),
        };
        for number in 0..20u32 {
            let there = to_device(&Tensor::full(number, 1000, &from).unwrap(), &to).unwrap();
            // Whatever the first GPU was asked for is done, and its memory is used again.
            from.synchronize().unwrap();
            let next = Tensor::full(77u32, 1000, &from).unwrap();
            from.synchronize().unwrap();
            assert_eq!(there.to_vec1::<u32>().unwrap(), [number; 1000]);
            drop(next);
        }
    }

    // INV-72
    #[test]
    fn what_another_handle_of_the_gpu_makes_is_there_when_it_is_copied() {
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
