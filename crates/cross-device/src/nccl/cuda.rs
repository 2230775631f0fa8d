//! NCCL's sums of candle tensors on GPUs.

use super::communicators::{self, CommunicatorSets, Library};
use super::fault::Fault;
use super::support::{gpu_of, number};
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, sys,
};
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, Device, InplaceOp2, Layout, Result as CandleResult, Tensor, bail,
};
use distribute_base::internal::gpu;
use distribute_nccl_library::{CallError, Communicators, Nccl, Vectors};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

static SETS: CommunicatorSets<Communicators> = CommunicatorSets::new();

/// Sums `parts[replica][number]` over the GPUs. See [`communicators::sum`].
///
/// # Errors
/// - [`Fault::Parts`]: a part is not on its replica's GPU.
/// - The errors of [`communicators::sum`].
/// - The errors of [`Nccl::get`], as [`Fault::Load`].
pub(super) fn sum(
    gpus: &[usize],
    parts: &[Vec<Tensor>],
    patience: Duration,
) -> Result<Vec<Vec<Tensor>>, Fault> {
    for (gpu, list) in gpus.iter().zip(parts) {
        if let Some(part) = list.iter().find(|part| gpu_of(part) != Some(*gpu)) {
            let place = part.device().location();
            return Err(Fault::Parts(format!("a part of GPU {gpu} is on {place:?}")));
        }
    }
    communicators::sum(Nccl::get()?, &SETS, gpus, parts, patience)
}

impl Library for Nccl {
    type Communicators = Communicators;

    fn open(&self, gpus: &[usize]) -> Result<Communicators, CallError> {
        share_memory(gpus)?;
        Ok(Communicators::new(gpus))
    }

    fn link(&self, communicators: &Communicators) -> Result<(), CallError> {
        // candle makes its GPU current on the thread before each of its calls.
        let bind = |gpu: usize| {
            let bound = device(gpu)?.cuda_stream().context().bind_to_thread();
            bound.map_err(|error| CallError { call: "cuCtxSetCurrent", reason: error.to_string() })
        };
        Nccl::link(self, communicators, bind)
    }

    fn busy(&self, communicators: &Communicators, call: &'static str) -> Result<Vec<usize>, CallError> {
        Nccl::busy(self, communicators, call)
    }

    fn room(&self, part: &Tensor) -> CandleResult<Tensor> {
        // SAFETY: all bit patterns are valid numbers. The sum writes them before anything else in the queue
        // reads them.
        unsafe { part.empty_like() }
    }

    fn start(&self) -> Result<(), CallError> {
        Nccl::start(self)
    }

    fn add(
        &self,
        communicators: &Communicators,
        parts: &[&Tensor],
        sums: &[&Tensor],
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclAllReduce";
        let refuse = |reason: &str| CallError { call: CALL, reason: reason.into() };
        let alike =
            |part: &&Tensor| part.dtype() == parts[0].dtype() && part.elem_count() == parts[0].elem_count();
        if parts.len() != sums.len() || !parts.iter().chain(sums).all(alike) {
            return Err(refuse("parts and sums differ"));
        }
        let there = |(gpu, (part, sum)): (&usize, (&&Tensor, &&Tensor))| {
            gpu_of(part) == Some(*gpu) && gpu_of(sum) == Some(*gpu)
        };
        let gpus = communicators.gpus();
        if gpus.len() != parts.len() || !gpus.iter().zip(parts.iter().zip(sums)).all(there) {
            return Err(refuse("parts are not on the GPUs of the communicators"));
        }
        let number = parts.first().and_then(|part| number(part.dtype()));
        let Some(number) = number else { return Err(refuse("it does not sum numbers of this type")) };
        for (replica, (part, sum)) in parts.iter().zip(sums).enumerate() {
            let call = |from, to, count, stream| {
                let vectors = Vectors { from, to, count, number };
                // SAFETY: type, number of elements and GPU of all replicas' tensors were compared above, and
                // `addresses` has checked that they are contiguous. `communicators::sum` holds the tensors until
                // the group has ended or its communicators have been aborted. candle frees their memory in the
                // order of its stream, which is the stream of the call.
                let called = unsafe { self.all_reduce(communicators, replica, vectors, stream) };
                called.map_err(|error| candle_core::Error::msg(error.reason))
            };
            // candle's error has only text, with NCCL's error in its first line.
            let failed =
                |error: candle_core::Error| refuse(error.to_string().lines().next().unwrap_or_default());
            sum.inplace_op2(part, &InMemory(CALL, call)).map_err(failed)?;
        }
        Ok(())
    }

    fn end(&self) -> Result<(), CallError> {
        Nccl::end(self)
    }

    fn queued(&self, part: &Tensor, sum: &Tensor) -> CandleResult<()> {
        // The calls are in the queue now. The operation does nothing, but cudarc records it.
        sum.inplace_op2(part, &InMemory("ncclGroupEnd", |_, _, _, _| Ok(())))
    }

    fn abort(&self, communicators: Communicators) {
        Nccl::abort(self, communicators);
    }
}

/// A candle operation on the memory of a part and its sum: the operation's name, and a function. The function receives
/// both addresses, the number of elements, and the GPU's queue (its CUDA stream).
///
/// cudarc records that the queue reads one tensor and writes the other at this point, so that other queues wait for it.
struct InMemory<F>(&'static str, F);

impl<F> InplaceOp2 for InMemory<F>
where
    F: Fn(*const c_void, *mut c_void, usize, *mut c_void) -> CandleResult<()>,
{
    fn name(&self) -> &'static str {
        self.0
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> CandleResult<()> {
        bail!("NCCL only sums on GPUs")
    }

    fn cuda_fwd(
        &self,
        sum: &mut CudaStorage,
        sum_at: &Layout,
        part: &CudaStorage,
        part_at: &Layout,
    ) -> CandleResult<()> {
        let (from, to) = addresses(sum, sum_at, part, part_at)?;
        let stream = part.device.cuda_stream().cu_stream().cast::<c_void>();
        (self.1)(from, to, part_at.shape().elem_count(), stream)
    }
}

/// Returns the addresses of a part and its sum in GPU memory.
fn addresses(
    sum: &mut CudaStorage,
    sum_at: &Layout,
    part: &CudaStorage,
    part_at: &Layout,
) -> CandleResult<(*const c_void, *mut c_void)> {
    use CudaStorageSlice::{BF16, F16, F32, F64, I64, U8, U32};
    fn of<T>(part: &CudaSlice<T>, sum: &mut CudaSlice<T>, stream: &CudaStream) -> (u64, u64, usize) {
        // When these guards are dropped, cudarc records the current state of the queue.
        let (from, _reads) = part.device_ptr(stream);
        let (to, _writes) = sum.device_ptr_mut(stream);
        (from, to, size_of::<T>())
    }
    let (Some((to_element, _)), Some((from_element, _))) =
        (sum_at.contiguous_offsets(), part_at.contiguous_offsets())
    else {
        bail!("parts and sums have to be contiguous")
    };
    let stream = part.device.cuda_stream();
    let (from, to, bytes) = match (&part.slice, &mut sum.slice) {
        (U8(part), U8(sum)) => of(part, sum, &stream),
        (U32(part), U32(sum)) => of(part, sum, &stream),
        (I64(part), I64(sum)) => of(part, sum, &stream),
        (F16(part), F16(sum)) => of(part, sum, &stream),
        (BF16(part), BF16(sum)) => of(part, sum, &stream),
        (F32(part), F32(sum)) => of(part, sum, &stream),
        (F64(part), F64(sum)) => of(part, sum, &stream),
        _ => bail!("NCCL does not sum numbers of this type"),
    };
    let at = |address: u64, element: usize| address + (element * bytes) as u64;
    Ok((at(from, from_element) as *const c_void, at(to, to_element) as *mut c_void))
}

/// Returns candle's handle to a GPU.
fn device(gpu: usize) -> Result<CudaDevice, CallError> {
    match gpu::open(gpu) {
        Ok(Device::Cuda(device)) => Ok(device),
        Ok(_) => Err(CallError { call: "cuDeviceGet", reason: format!("GPU {gpu} is not a CUDA GPU") }),
        Err(error) => Err(CallError { call: "cuDeviceGet", reason: error.to_string() }),
    }
}

/// CUDA's struct `CUmemAccessDesc`, which grants access to memory. Its declaration in cudarc depends on the CUDA
/// release, but its layout does not.
#[repr(C)]
struct Access {
    /// The kind of location, which is always `CU_MEM_LOCATION_TYPE_DEVICE`.
    kind: c_int,
    device: c_int,
    /// The access rights, which are always `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    flags: c_int,
}

/// Grants each GPU access to the memory pools of those other GPUs whose memory it can access directly. NCCL lets a GPU
/// access tensors of other GPUs in the same process directly. By default, memory from a pool, such as candle's, is not
/// accessible to other GPUs, and NCCL would fail with an illegal access.
fn share_memory(gpus: &[usize]) -> Result<(), CallError> {
    let devices = gpus.iter().map(|gpu| device(*gpu)).collect::<Result<Vec<_>, _>>()?;
    let contexts: Vec<_> = devices.iter().map(|device| device.cuda_stream().context().clone()).collect();
    for of in &contexts {
        // Without pools, NCCL enables the access automatically.
        if !of.has_async_alloc() {
            continue;
        }
        let mut pool = ptr::null_mut();
        // SAFETY: the device is there, and the pool lives during the call.
        done("cuDeviceGetMemPool", unsafe { sys::cuDeviceGetMemPool(&raw mut pool, of.cu_device()) })?;
        for to in contexts.iter().filter(|to| to.ordinal() != of.ordinal()) {
            let mut can = 0;
            // SAFETY: both devices are there, and the answer lives during the call.
            let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, to.cu_device(), of.cu_device()) };
            done("cuDeviceCanAccessPeer", asked)?;
            if can != 0 {
                let access = Access { kind: 1, device: to.cu_device(), flags: 3 };
                // SAFETY: the pool is the device's, and there is one description, which lives during the call.
                let set = unsafe { sys::cuMemPoolSetAccess(pool, (&raw const access).cast(), 1) };
                done("cuMemPoolSetAccess", set)?;
            }
        }
    }
    Ok(())
}

fn done(call: &'static str, result: sys::CUresult) -> Result<(), CallError> {
    result.result().map_err(|error: DriverError| CallError { call, reason: error.to_string() })
}
