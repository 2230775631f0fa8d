//! The GPUs of this process, each opened once.

use crate::lock::lock;
use candle_core::{Device, Result, bail};
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::Mutex;

/// The handles by number. candle creates new streams, caches of kernels and a generator of random numbers for each
/// handle, and the work of one handle is not ordered with that of another.
static OPEN: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);

/// The GPU of this number, by the one handle that this process has of it.
///
/// # Errors
/// candle's, for one that is not there.
pub fn open(number: usize) -> Result<Device> {
    // Held while one is opened, so that two threads don't.
    let mut all = lock(&OPEN);
    let all = all.get_or_insert_default();
    if let Some(device) = all.get(&number) {
        return Ok(device.clone());
    }
    let device = new(number)?;
    all.insert(number, device.clone());
    Ok(device)
}

/// Opens CUDA with a stream of its own: the default one is another for each thread, and candle does not order these.
fn new(number: usize) -> Result<Device> {
    if cfg!(feature = "cuda") {
        let device = Device::new_cuda_with_stream(number)?;
        #[cfg(feature = "cuda")]
        keep_memory(&device);
        return Ok(device);
    }
    // candle panics where there are fewer.
    catch_unwind(|| Device::new_metal(number)).unwrap_or_else(|_| bail!("there is no GPU of this number"))
}

/// Makes CUDA keep freed memory of tensors for this process. Otherwise it returns all of it to the system whenever a
/// thread waits for the GPU, and the next step's memory takes milliseconds.
#[cfg(feature = "cuda")]
fn keep_memory(device: &Device) {
    use candle_core::cuda_backend::cudarc::driver::sys;
    let Device::Cuda(device) = device else { return };
    let stream = device.cuda_stream();
    if !stream.context().has_async_alloc() {
        return;
    }
    let (mut pool, mut most) = (std::ptr::null_mut(), u64::MAX);
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the context is that of this GPU, as long as it is open; a pool and a number are written and read where
    // they are. Where it fails, steps are slower.
    unsafe {
        if sys::cuDeviceGetMemPool(&mut pool, stream.context().cu_device()) == sys::CUresult::CUDA_SUCCESS {
            let _ = sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut most).cast());
        }
    }
}
