//! Copies to a GPU of CUDA through pinned memory.
//!
//! candle's `to_device` copies pageable memory on the stream on which it computes. Such a copy waits for all earlier
//! work, and so does its thread. [`Pinned`] writes a tensor into *pinned* memory, which the GPU reads by itself, and
//! copies it on a second stream. The copy waits for no computation, and only computations that read the tensor wait for
//! the copy.
//!
//! Why that is right, by CUDA's rules of streams and cudarc's of events (0.19.10):
//!
//! - **The GPU reads a tensor when its copy is done.** With several streams and its tracking on, cudarc has two events
//!   for each allocation on a GPU: after its last write and after its last read. candle reaches memory by `device_ptr`,
//!   `device_ptr_mut` or as an argument of a kernel, and each of these makes its stream wait for the last write first.
//!   This module records the event of the last write after the copy, on the stream of copies. If tracking is off, which
//!   takes `unsafe`, it copies nothing.
//! - **The memory belongs to candle's stream.** It is allocated on the stream of copies, because on candle's stream it
//!   would be available only after all earlier work. But some of candle's operations, those that look up rows by ids,
//!   wait and record their reads on the stream that the *memory* names, and launch on candle's own. So another owner
//!   makes the memory one of candle's stream, with its events.
//! - **Memory is freed after its last use.** cudarc frees on the stream that the memory names, candle's, and makes it
//!   wait for both events first. So the memory is freed after the copy, even if nothing has read it, and after all that
//!   candle has launched. CUDA allows freeing memory on another stream than it was allocated on, if that comes after
//!   the allocation, and the copy does. The next allocation on the stream of copies gets the memory after that: CUDA's
//!   pools order memory between streams by themselves. Where there are no such pools, cudarc waits for the stream, and
//!   frees then, as it does for all of candle's tensors.
//! - **A buffer is written when the copy from it is done.** Each buffer has an event of its own, recorded after its
//!   copy. The pool checks the event or waits for it, and so does a buffer before it is freed. If a copy or its event
//!   cannot be recorded, the whole stream is waited for. This does not rely on cudarc's tracking, which does not see
//!   copies from a part of a buffer.
//!
//! A copy waits for the copies before it. They wait for nothing, or for memory to be freed if the GPU is short of it.
//! So the wait for a buffer ends, as a wait for candle's own copies does. Making one of the few buffers may wait for
//! the GPU.

use super::pool::{self, Pool};
use crate::lock::lock;
use bytemuck::NoUninit;
use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, CudaViewMut, DevicePtrMut, DriverError, PinnedHostSlice,
};
use candle_core::cuda_backend::{CudaStorageSlice, DeviceId};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, Storage, Tensor};
use distribute_log::heard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The number of buffers for a GPU. One is written while others are copied.
const BUFFERS: usize = 4;

/// The copier to one GPU.
pub(super) struct Pinned {
    device: CudaDevice,
    /// The stream of copies, without computations.
    copies: Arc<CudaStream>,
    /// The buffers. The lock is held while a tensor is copied, because copies to one GPU share the bus anyway.
    pool: Mutex<Pool<Buffer>>,
    has_told: AtomicBool,
}

/// The copier of each GPU of the process, with its memory; `None` for GPUs that cannot have one.
static ALL: Mutex<Vec<(DeviceId, Option<Arc<Pinned>>)>> = Mutex::new(Vec::new());

impl Pinned {
    /// Returns the copier of this GPU; `None` if it can have none.
    pub(super) fn of(device: &CudaDevice) -> Option<Arc<Self>> {
        let mut all = lock(&ALL);
        if let Some((_, pinned)) = all.iter().find(|(id, _)| *id == device.id()) {
            return pinned.clone();
        }
        let pinned = Self::new(device, BUFFERS).inspect_err(|error| tell(device, &error.to_string()));
        let pinned = pinned.ok().map(Arc::new);
        all.push((device.id(), pinned.clone()));
        pinned
    }

    fn new(device: &CudaDevice, buffers: usize) -> Result<Self, DriverError> {
        let copies = device.cuda_stream().context().new_stream()?;
        let (pool, has_told) = (Mutex::new(Pool::new(buffers)), AtomicBool::new(false));
        Ok(Self { device: device.clone(), copies, pool, has_told })
    }

    /// Copies a tensor from the memory of the CPU to the GPU. Returns `None` if the tensor is left to candle; if that
    /// is because of a failure, it is logged once.
    pub(super) fn carry(&self, tensor: &Tensor) -> Option<Tensor> {
        let (storage, _) = tensor.storage_and_layout();
        // A tensor with a gradient needs an operation of candle's, and one without elements needs no copy.
        if !matches!(&*storage, Storage::Cpu(_)) || tensor.track_op() || tensor.elem_count() == 0 {
            return None;
        }
        drop(storage);
        match self.try_carry(tensor) {
            Ok(there) => Some(there),
            Err(why) => {
                if !self.has_told.swap(true, Ordering::Relaxed) {
                    tell(&self.device, &why);
                }
                None
            }
        }
    }

    fn try_carry(&self, tensor: &Tensor) -> Result<Tensor, String> {
        if !self.copies.context().is_managing_stream_synchronization() {
            return Err("cudarc's tracking of events is off".into());
        }
        let tensor = tensor.contiguous().map_err(|error| error.to_string())?;
        let (storage, layout) = tensor.storage_and_layout();
        let (Storage::Cpu(all), Some((from, to))) = (&*storage, layout.contiguous_offsets()) else {
            return Err("it is not contiguous in the memory of the CPU".into());
        };
        let slice = match all {
            CpuStorage::U8(all) => self.copy(&all[from..to]).map(CudaStorageSlice::U8),
            CpuStorage::U32(all) => self.copy(&all[from..to]).map(CudaStorageSlice::U32),
            CpuStorage::I16(all) => self.copy(&all[from..to]).map(CudaStorageSlice::I16),
            CpuStorage::I32(all) => self.copy(&all[from..to]).map(CudaStorageSlice::I32),
            CpuStorage::I64(all) => self.copy(&all[from..to]).map(CudaStorageSlice::I64),
            CpuStorage::BF16(all) => self.copy(&all[from..to]).map(CudaStorageSlice::BF16),
            CpuStorage::F16(all) => self.copy(&all[from..to]).map(CudaStorageSlice::F16),
            CpuStorage::F32(all) => self.copy(&all[from..to]).map(CudaStorageSlice::F32),
            CpuStorage::F64(all) => self.copy(&all[from..to]).map(CudaStorageSlice::F64),
            _ => return Err(format!("candle alone copies {:?}", tensor.dtype())),
        };
        let storage = Storage::Cuda(CudaStorage { slice: slice?, device: self.device.clone() });
        Ok(Tensor::from_storage(storage, layout.shape(), BackpropOp::none(), false))
    }

    /// Copies numbers, at least one, into memory of candle's stream.
    fn copy<T: NoUninit>(&self, numbers: &[T]) -> Result<CudaSlice<T>, String> {
        let written = self.copy_bytes(bytemuck::cast_slice(numbers)).map_err(|error| error.to_string())?;
        let candle_stream = self.device.cuda_stream();
        let memory = written.leak();
        // SAFETY: the allocation has no other owner since `leak`, has the size of the numbers, is aligned for any, and
        // contains the numbers when the copy is done.
        let upgraded = catch_unwind(AssertUnwindSafe(|| unsafe {
            candle_stream.upgrade_device_ptr(memory, numbers.len())
        }));
        let Ok(mut owned): Result<CudaSlice<T>, _> = upgraded else {
            // The memory has no owner then, and is leaked.
            let _ = self.copies.synchronize();
            return Err("cudarc has panicked, as where a GPU fails or has no events left".into());
        };
        let (_, behind) = owned.device_ptr_mut(&self.copies);
        // Records the event of the last write, on the stream of copies.
        drop(behind);
        // The context keeps an error of that. Without the event, the memory could be freed while it is written.
        if let Err(error) = self.copies.context().check_err() {
            let _ = self.copies.synchronize();
            return Err(error.to_string());
        }
        Ok(owned)
    }

    fn copy_bytes(&self, bytes: &[u8]) -> Result<CudaSlice<u8>, DriverError> {
        // SAFETY: all uses of the memory come after the copies that write all of it.
        let mut memory = unsafe { self.copies.alloc::<u8>(bytes.len()) }?;
        let mut pool = lock(&self.pool);
        let mut done = 0;
        while done < bytes.len() {
            let left = &bytes[done..];
            let mut buffer = pool.take(left.len(), |size| Buffer::new(self.copies.context(), size))?;
            let part = &left[..left.len().min(buffer.memory.len())];
            let sent = buffer.send(part, &self.copies, &mut memory.slice_mut(done..done + part.len()));
            if let Err(error) = sent {
                // Otherwise the buffer could be freed while it is read.
                let _ = self.copies.synchronize();
                return Err(error);
            }
            pool.give(buffer);
            done += part.len();
        }
        Ok(memory)
    }
}

/// Pinned memory, and the event of its last copy.
struct Buffer {
    memory: PinnedHostSlice<u8>,
    copied: CudaEvent,
}

impl Buffer {
    fn new(context: &Arc<CudaContext>, size: usize) -> Result<Self, DriverError> {
        let copied = context.new_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC))?;
        // SAFETY: the memory is written here, before anything reads it.
        let memory = unsafe {
            let mut memory = context.alloc_pinned::<u8>(size)?;
            memory.as_mut_ptr()?.write_bytes(0, size);
            memory
        };
        Ok(Self { memory, copied })
    }

    /// Starts a copy of these bytes, which fit. The last copy must be done.
    fn send(
        &mut self,
        bytes: &[u8],
        copies: &Arc<CudaStream>,
        to: &mut CudaViewMut<'_, u8>,
    ) -> Result<(), DriverError> {
        self.memory.as_mut_slice()?[..bytes.len()].copy_from_slice(bytes);
        copies.memcpy_htod(&self.memory.as_slice()?[..bytes.len()], to)?;
        self.copied.record(copies)
    }
}

impl pool::Buffer for Buffer {
    type Error = DriverError;

    fn size(&self) -> usize {
        self.memory.len()
    }

    fn is_free(&self) -> Result<bool, DriverError> {
        self.copied.try_is_complete()
    }

    fn wait(&self) -> Result<(), DriverError> {
        self.copied.synchronize()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // After an error, the GPU does not read any more.
        let _ = self.copied.synchronize();
    }
}

fn tell(device: &CudaDevice, why: &str) {
    let gpu = device.cuda_stream().context().ordinal();
    heard(|| {
        tracing::warn!(
            gpu,
            why,
            "some tensors are not copied from pinned memory: these copies wait for what the GPU does"
        );
    });
}

#[cfg(test)]
mod tests;
