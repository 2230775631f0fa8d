//! The GPUs of this process, each opened once.

use crate::lock::lock;
use candle_core::{Device, Result, bail};
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::Mutex;

/// Handles by number. candle makes streams, caches of kernels and a generator of random numbers anew for each that is opened, and what is
/// done by one is not ordered with what is done by another.
static OPEN: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);

/// The GPU of this number, by the one handle that this process has of it.
///
/// # Errors
/// candle's, for one that is not there.
pub(super) fn open(number: usize) -> Result<Device> {
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

/// Of CUDA with a stream of its own: the default one is another for each thread, and candle does not order these.
fn new(number: usize) -> Result<Device> {
    if cfg!(feature = "cuda") {
        return Device::new_cuda_with_stream(number);
    }
    // candle panics where there are fewer.
    catch_unwind(|| Device::new_metal(number)).unwrap_or_else(|_| bail!("there is no GPU of this number"))
}
