//! The GPUs of this process, each opened once.

use crate::lock::lock;
use candle_core::{Device, Result, bail};
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::Mutex;

/// The handles of open GPUs, by index. For each handle, candle creates a separate stream, kernel cache and random
/// number generator. Work on different handles is not ordered.
static OPEN: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);

/// Returns this process's only handle to the GPU with the given index. Opens the GPU on the first call.
///
/// # Errors
/// Returns candle's error if there is no such GPU or it cannot be opened.
pub fn open(number: usize) -> Result<Device> {
    // Held while a GPU is opened, so that two threads do not open it twice.
    let mut all = lock(&OPEN);
    let all = all.get_or_insert_default();
    if let Some(device) = all.get(&number) {
        return Ok(device.clone());
    }
    let device = new(number)?;
    all.insert(number, device.clone());
    Ok(device)
}

/// Opens a GPU. With CUDA, the GPU gets a separate stream, because the default stream differs between threads and
/// candle does not order the threads' streams.
fn new(number: usize) -> Result<Device> {
    if cfg!(feature = "cuda") {
        let device = Device::new_cuda_with_stream(number)?;
        #[cfg(feature = "cuda")]
        keep_memory(&device);
        return Ok(device);
    }
    // candle panics if there are fewer.
    catch_unwind(|| Device::new_metal(number)).unwrap_or_else(|_| bail!("there is no GPU with this number"))
}

/// Configures CUDA to keep freed tensor memory for this process. Otherwise CUDA returns all of it to the system
/// whenever a thread waits for the GPU, and allocating the next step's memory takes milliseconds.
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
    // SAFETY: the context is that of this GPU, as long as it is open; a pool and a number are written and read at valid
    // addresses. If it fails, steps are slower.
    unsafe {
        if sys::cuDeviceGetMemPool(&mut pool, stream.context().cu_device()) == sys::CUresult::CUDA_SUCCESS {
            let _ = sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut most).cast());
        }
    }
}
