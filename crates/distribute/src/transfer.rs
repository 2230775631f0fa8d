//! [`to_device`]: tensors between devices.

use candle_core::{Device, Result, Tensor};
use distribute_tensor::without_elements;

/// The tensor on this device, by candle's way, and two cases that it leaves out: of a tensor without elements, CUDA refuses to take nothing; and one that is
/// copied from a GPU to another is kept until that is done, whoever drops it before. cudarc (0.19) lets the copy wait for what writes it, but takes note of it on
/// the source's stream before the copy, and so frees the source too early.
///
/// # Errors
/// candle's: the device has no memory, or no such dtype.
pub(crate) fn to_device(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device().same_device(device) {
        return Ok(tensor.clone());
    }
    if tensor.elem_count() == 0 {
        return without_elements(tensor.dims(), tensor.dtype(), device);
    }
    let there = tensor.to_device(device)?;
    #[cfg(feature = "cuda")]
    if let (Device::Cuda(from), Device::Cuda(to)) = (tensor.device(), device) {
        use candle_core::cuda_backend::WrapErr;
        // What the first GPU is asked for from now on, such as to free the tensor, is behind the copy.
        from.cuda_stream().wait(&to.cuda_stream().record_event(None).w()?).w()?;
    }
    Ok(there)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::DeviceName;
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
}
