//! Transfers of tensors between the host and devices.
//!
//! | function | effect |
//! |---|---|
//! | [`to_device`] | copies a tensor to a device |
//! | [`to_host`] | copies a tensor to the host, and waits for its device |
//! | [`host_value`] | returns integers from a device, without waiting if input has copied them there |
//!
//! [`DeviceCopier`] copies the tensors of a dataset.

// - INV-72: `to_device` keeps the source of copies between GPUs until they are complete (cudarc frees it before),
//   accepts tensors without elements, waits for the work of another handle of the same GPU, and waits for no GPU with
//   large copies from the host. Tests: `base/src/transfer/tests.rs` (with two GPUs of CUDA, or CUDA in software).

mod device_copier;
#[cfg(feature = "cuda")]
mod hold;
mod host_copies;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(any(feature = "cuda", test))]
mod pool;
pub use device_copier::DeviceCopier;
#[cfg(feature = "cuda")]
pub use hold::hold_gpu;

use candle_core::shape::ShapeWithOneHole;
use candle_core::{Device, Result, Tensor, WithDType};
use distribute_tensor::without_elements;
pub use host_copies::{HostCopies, host_value};

/// The maximum size in bytes of pageable memory that CUDA copies without waiting. If a copy is larger, its thread waits
/// until the GPU has finished all earlier work.
const AT_ONCE: usize = 64 << 10;

/// Copies a tensor to a device, or returns it unchanged if it is already there. In these cases, it does more than
/// candle's own copy:
///
/// - A tensor without elements: CUDA cannot copy zero bytes.
/// - A large tensor is copied to a GPU through pinned memory, so that no thread waits for the GPU's other work.
/// - A tensor that is copied from one GPU to another is kept until the copy is complete, even if it is dropped earlier.
///   cudarc (0.19) makes the copy wait for writes to the tensor. But it records the copy on the source's stream too
///   early, and would therefore free the source too early.
/// - A tensor of a different handle to the same GPU: neither candle nor cudarc orders the streams of two handles. This
///   function therefore waits for all work of the GPU before and after the copy.
///
/// # Errors
/// Returns candle's error if the device has too little memory or does not support the dtype.
pub fn to_device(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device().same_device(device) {
        return Ok(tensor.clone());
    }
    if tensor.elem_count() == 0 {
        return without_elements(tensor.dims(), tensor.dtype(), device);
    }
    if tensor.elem_count() * tensor.dtype().size_in_bytes() > AT_ONCE
        && let Some(there) = through_pinned_memory(tensor, device)
    {
        return Ok(there);
    }
    #[cfg(feature = "cuda")]
    if let (Device::Cuda(from), Device::Cuda(to)) = (tensor.device(), device) {
        return between(tensor, from, to);
    }
    tensor.to_device(device)
}

/// Creates a tensor on a device from a vector of numbers.
///
/// # Errors
/// - The errors of [`to_device`].
/// - Candle's error if the shape has a different number of elements.
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

/// Copies a tensor from CPU memory to a GPU through pinned memory, without waiting for the GPU's other work.
///
/// Returns `None` for other kinds of tensors and devices, for tensors with a gradient or without elements, and if the
/// copy cannot be made this way. The last case is logged once per GPU.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub fn through_pinned_memory(tensor: &Tensor, device: &Device) -> Option<Tensor> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return pinned::Pinned::of(device)?.copy_tensor(tensor);
    }
    None
}

/// Copies a tensor to CPU memory. Waits for the device of the tensor.
///
/// # Errors
/// Returns candle's error if the device fails.
pub fn to_host(tensor: &Tensor) -> Result<Tensor> {
    WAITS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    tensor.to_device(&Device::Cpu)
}

/// The number of calls of [`to_host`] in this process, each of which may wait for a device. Tests use it.
pub static WAITS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[cfg(all(test, feature = "cuda"))]
mod tests;
