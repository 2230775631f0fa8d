//! Copies of tensors to a CUDA GPU through pinned memory.
//!
//! candle's `to_device` copies pageable memory on the stream on which candle computes. Such a copy waits for all
//! earlier work, and the calling thread waits with it. [`Pinned`] writes a tensor into *pinned* memory, which the GPU
//! can read directly, and copies it on a second stream. The copy does not wait for any computation, and only
//! computations that read the tensor wait for the copy.
//!
//! The following argument relies on CUDA's rules for streams and cudarc's for events (0.19.10):
//!
//! - **The GPU reads a tensor only after its copy is complete.** If there are several streams and tracking is
//!   on, cudarc has two events per allocation on a GPU: after the last write and after the last read. candle
//!   accesses memory with `device_ptr`, with `device_ptr_mut` or as an argument of a kernel. Each of these
//!   first makes its stream wait for the last write. This module records the event of the last write after
//!   the copy, on the stream of copies. If tracking is off, which requires `unsafe` code, this module copies
//!   nothing.
//! - **The memory belongs to candle's stream.** The memory is allocated on the stream of copies, because on candle's
//!   stream it would be available only after all earlier work. But candle's operations that look up rows by ids use two
//!   streams. They wait and record their reads on the stream that the *memory* names, but launch on candle's own
//!   stream. The memory is therefore given a new owner, which names candle's stream and has its own events.
//! - **Memory is freed after its last use.** cudarc frees memory on the stream that the memory names, which is
//!   candle's, and first makes this stream wait for both events. The memory is therefore freed after the copy, even if
//!   nothing has read it, and after all work that candle has launched. CUDA allows freeing memory on a different stream
//!   than it was allocated on, if freeing comes after the allocation. This is the case, because the copy comes after
//!   the allocation. Later allocations on the stream of copies can reuse the memory only after that, because CUDA's
//!   pools order memory between streams automatically. If there are no such pools, cudarc waits for the stream before
//!   it frees the memory, as for all of candle's tensors.
//! - **A buffer is written only after the copy from it is complete.** Each buffer has its own event, which is
//!   recorded after its copy. The pool checks the event or waits for it, and a buffer waits for it before it
//!   is freed. If a copy or its event cannot be recorded, the code waits for the complete stream. This does
//!   not rely on cudarc's tracking, which does not detect copies from a part of a buffer.
//!
//! A copy waits only for earlier copies. If the GPU is short of memory, those wait for memory to be freed; otherwise
//! they wait for nothing. Waiting for a buffer therefore always ends, as it does with candle's own copies. Creating one
//! of the few buffers may wait for the GPU.

// - **INV-70** Data that is copied to a CUDA GPU before its step waits for no computation there, and is read there
//   when its copy is complete. Its memory, on the GPU and on the host, is not reused before. The number and size of
//   buffers on the host are limited as documented. Tests: `base/src/transfer/pool.rs`,
//   `base/src/transfer/pinned/tests.rs` (with CUDA, or CUDA in software).

use super::pool::{self, BufferPool};
use crate::lock::lock;
use bytemuck::NoUninit;
use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, CudaViewMut, DevicePtrMut, DriverError, PinnedHostSlice,
};
use candle_core::cuda_backend::{CudaStorageSlice, DeviceId};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, Storage, Tensor};
use distribute_log::warn_or_stderr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The maximum number of buffers per GPU. One is written while others are being copied.
const BUFFERS: usize = 4;

/// A copier of tensors to one GPU.
pub(super) struct Pinned {
    device: CudaDevice,
    /// The stream for copies. No computations run on it.
    copies: Arc<CudaStream>,
    /// The buffers. The lock is held while a tensor is copied, because copies to the same GPU share the bus
    /// anyway.
    pool: Mutex<BufferPool<Buffer>>,
    has_warned: AtomicBool,
}

/// The copier for each GPU of the process; `None` for a GPU that does not support one.
static ALL: Mutex<Vec<(DeviceId, Option<Arc<Pinned>>)>> = Mutex::new(Vec::new());

impl Pinned {
    /// Returns the copier for a GPU, which the first call creates. Returns `None` if the copier could not be created;
    /// the first call logs the reason.
    pub(super) fn of(device: &CudaDevice) -> Option<Arc<Self>> {
        let mut all = lock(&ALL);
        if let Some((_, pinned)) = all.iter().find(|(id, _)| *id == device.id()) {
            return pinned.clone();
        }
        let pinned =
            Self::new(device, BUFFERS).inspect_err(|error| warn_fallback(device, &error.to_string()));
        let pinned = pinned.ok().map(Arc::new);
        all.push((device.id(), pinned.clone()));
        pinned
    }

    fn new(device: &CudaDevice, buffers: usize) -> Result<Self, DriverError> {
        let copies = device.cuda_stream().context().new_stream()?;
        let (pool, has_warned) = (Mutex::new(BufferPool::new(buffers)), AtomicBool::new(false));
        Ok(Self { device: device.clone(), copies, pool, has_warned })
    }

    /// Copies a tensor from CPU memory to the GPU. Returns `None` if candle must copy the tensor instead. If the reason
    /// is a failure, it is logged once.
    pub(super) fn copy_tensor(&self, tensor: &Tensor) -> Option<Tensor> {
        let (storage, _) = tensor.storage_and_layout();
        // A tensor with a gradient needs an operation of candle's, and one without elements needs no copy.
        if !matches!(&*storage, Storage::Cpu(_)) || tensor.track_op() || tensor.elem_count() == 0 {
            return None;
        }
        drop(storage);
        match self.try_copy_tensor(tensor) {
            Ok(there) => Some(there),
            Err(why) => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    warn_fallback(&self.device, &why);
                }
                None
            }
        }
    }

    fn try_copy_tensor(&self, tensor: &Tensor) -> Result<Tensor, String> {
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

    /// Copies a non-empty slice of numbers into memory that belongs to candle's stream.
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
            return Err("cudarc panicked, perhaps because a GPU failed or has no events left".into());
        };
        let (_, behind) = owned.device_ptr_mut(&self.copies);
        // Records the event of the last write, on the stream of copies.
        drop(behind);
        // The context keeps an error of this record. Without the event, the memory could be freed while it is written.
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
            pool.put_back(buffer);
            done += part.len();
        }
        Ok(memory)
    }
}

/// A buffer in pinned memory, and the event that marks the end of the last copy from it.
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

    /// Starts a copy of `bytes`, which must fit into the buffer. The last copy from the buffer must be
    /// complete.
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

fn warn_fallback(device: &CudaDevice, why: &str) {
    let gpu = device.cuda_stream().context().ordinal();
    warn_or_stderr(|| {
        tracing::warn!(
            gpu,
            why,
            "some tensors are not copied through pinned memory: these copies wait for the GPU's other work"
        );
    });
}

#[cfg(test)]
mod tests;
