//! NCCL and CUDA, as cudarc calls them.

use crate::library::Library;
use crate::offer::{Gpu, UniqueId};
use crate::{CallError, Error};
use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DriverError};
use cudarc::nccl::result::{self, NcclError, NcclStatus};
use cudarc::nccl::sys;
use distribute_net::Number;
use distribute_net::polling::wait_or_leave;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// `NCCL_CONFIG_UNDEF_INT`: NCCL chooses.
const CHOOSE: c_int = c_int::MIN;

/// How much of the GPU's free memory a vector may take, as a fraction: 1 of so many parts.
const PARTS: usize = 2;

/// How long giving up a communicator is waited for: a GPU that hangs keeps it for ever.
const FAREWELL: Duration = Duration::from_secs(5);

/// A GPU, and its communicator once there is one.
pub(crate) struct Cuda {
    stream: Arc<CudaStream>,
    /// In a place of its own, in which NCCL writes it once more, from a thread of its own, when the workers are linked.
    communicator: Option<Box<AtomicPtr<sys::ncclComm>>>,
    under_way: Option<UnderWay>,
}

/// A sum that has begun.
struct UnderWay {
    vector: CudaSlice<u8>,
    /// Tells that the GPU is done, once all that NCCL has to do is in its queue.
    done: Option<CudaEvent>,
}

// SAFETY: NCCL lets any thread call for a communicator, one at a time, and whoever has `&mut Cuda` is alone with it. Its calls make the
// GPU's context current on their thread.
unsafe impl Send for Cuda {}

impl Cuda {
    /// The GPU of this number. The libraries have to be [there](crate::installed::check).
    pub fn new(gpu: usize) -> Result<Self, Error> {
        let count = CudaContext::device_count().map_err(driver("cuDeviceGetCount"))?;
        let count = usize::try_from(count).unwrap_or(0);
        if gpu >= count {
            return Err(Error::NoGpu { gpu, count });
        }
        let context = CudaContext::new(gpu).map_err(driver("cuDevicePrimaryCtxRetain"))?;
        let stream = context.new_stream().map_err(driver("cuStreamCreate"))?;
        Ok(Self { stream, communicator: None, under_way: None })
    }

    fn communicator(&self) -> Result<sys::ncclComm_t, CallError> {
        let gone =
            || CallError { call: "ncclAllReduce", reason: "the communicator has been given up".into() };
        self.communicator.as_ref().map(|place| place.load(Ordering::Acquire)).ok_or_else(gone)
    }

    /// Whether NCCL has done what it was asked for last.
    fn is_idle(&self, call: &'static str) -> Result<bool, CallError> {
        let communicator = self.communicator()?;
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the communicator was made by NCCL and has not been given up; the state is where it is written.
        let asked = unsafe { sys::ncclCommGetAsyncError(communicator, &raw mut state) };
        asked
            .result()
            .and_then(|_| state.result())
            .map(|status| status != NcclStatus::InProgress)
            .map_err(nccl(call))
    }

    fn bind(&self) -> Result<(), CallError> {
        self.stream.context().bind_to_thread().map_err(driver("cuCtxSetCurrent"))
    }
}

impl Library for Cuda {
    fn release(&self) -> Result<i32, CallError> {
        result::get_nccl_version().map_err(nccl("ncclGetVersion"))
    }

    fn gpu(&self) -> Result<Gpu, CallError> {
        let uuid = self.stream.context().uuid().map_err(driver("cuDeviceGetUuid"))?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    fn unique_id(&self) -> Result<UniqueId, CallError> {
        let id = result::get_uniqueid().map_err(nccl("ncclGetUniqueId"))?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    fn link(&mut self, id: UniqueId, worker: usize, workers: usize) -> Result<(), CallError> {
        const CALL: &str = "ncclCommInitRankConfig";
        let number = |number: usize| {
            c_int::try_from(number).map_err(|_| CallError { call: CALL, reason: format!("{number} workers") })
        };
        let (worker, workers) = (number(worker)?, number(workers)?);
        self.bind()?;
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as _) };
        let mut config = no_call_waits();
        let place = Box::new(AtomicPtr::new(ptr::null_mut()));
        // SAFETY: the configuration lives during the call, which copies it, and the communicator's place until `abort`, which ends what NCCL does
        // for it.
        let begun =
            unsafe { result::comm_init_rank_config(place.as_ptr(), workers, id, worker, &raw mut config) };
        if !place.load(Ordering::Acquire).is_null() {
            self.communicator = Some(place);
        }
        begun.map(drop).map_err(nccl(CALL))
    }

    fn is_linked(&mut self) -> Result<bool, CallError> {
        self.is_idle("ncclCommInitRankConfig")
    }

    fn room(&self) -> usize {
        let free = self.stream.context().mem_get_info().map_or(0, |(free, _)| free);
        free / PARTS
    }

    fn begin(&mut self, vector: &[u8], number: Number) -> Result<(), CallError> {
        const CALL: &str = "ncclAllReduce";
        let communicator = self.communicator()?;
        self.bind()?;
        let mut on_gpu = self.stream.clone_htod(vector).map_err(driver("cuMemcpyHtoDAsync"))?;
        let (dtype, size) = match number {
            Number::F32 => (sys::ncclDataType_t::ncclFloat32, size_of::<f32>()),
            Number::F64 => (sys::ncclDataType_t::ncclFloat64, size_of::<f64>()),
        };
        let begun = {
            let (at, _in_order) = on_gpu.device_ptr_mut(&self.stream);
            let at = at as *mut c_void;
            let (count, stream) = (vector.len() / size, self.stream.cu_stream() as sys::cudaStream_t);
            // SAFETY: the memory has so many numbers, and is kept until the stream is through with it or the communicator is given
            // up. It is written where it is read, as NCCL allows.
            unsafe {
                result::all_reduce(at, at, count, dtype, sys::ncclRedOp_t::ncclSum, communicator, stream)
            }
        };
        // Also where it has failed: what is in the queue may use it, until the communicator is given up.
        self.under_way = Some(UnderWay { vector: on_gpu, done: None });
        begun.map(drop).map_err(nccl(CALL))
    }

    fn sum(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        if !self.is_idle("ncclAllReduce")? {
            return Ok(None);
        }
        let Some(under_way) = &mut self.under_way else {
            return Err(CallError { call: "ncclAllReduce", reason: "no sum has begun".into() });
        };
        let done = match &under_way.done {
            Some(done) => done,
            None => {
                let event = self.stream.record_event(None).map_err(driver("cuEventRecord"))?;
                under_way.done.insert(event)
            }
        };
        if !done.try_is_complete().map_err(driver("cuEventQuery"))? {
            return Ok(None);
        }
        let sum = self.stream.clone_dtoh(&under_way.vector).map_err(driver("cuMemcpyDtoHAsync"))?;
        // Nothing is before it in the queue.
        self.stream.synchronize().map_err(driver("cuStreamSynchronize"))?;
        self.under_way = None;
        Ok(Some(sum))
    }

    fn abort(&mut self) {
        let under_way = self.under_way.take();
        let Some(place) = self.communicator.take() else { return };
        wait_or_leave("nccl-abort", FAREWELL, move || {
            // SAFETY: it was made by NCCL, and nobody has it any more. Where that fails, there is nothing left to do about it.
            let _ = unsafe { result::comm_abort(place.load(Ordering::Acquire)) };
            // Until then, the GPU may use it.
            drop(under_way);
        });
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A communicator on which no call waits for another worker.
fn no_call_waits() -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 23000,
        blocking: 0,
        cgaClusterSize: CHOOSE,
        minCTAs: CHOOSE,
        maxCTAs: CHOOSE,
        netName: ptr::null(),
        splitShare: CHOOSE,
        trafficClass: CHOOSE,
        commName: ptr::null(),
        collnetEnable: CHOOSE,
        CTAPolicy: CHOOSE,
        shrinkShare: CHOOSE,
        nvlsCTAs: CHOOSE,
        nChannelsPerNetPeer: CHOOSE,
        nvlinkCentricSched: CHOOSE,
        graphUsageMode: CHOOSE,
        numRmaCtx: CHOOSE,
        maxP2pPeers: CHOOSE,
    }
}

fn driver(call: &'static str) -> impl FnOnce(DriverError) -> CallError {
    move |error| CallError { call, reason: error.to_string() }
}

fn nccl(call: &'static str) -> impl FnOnce(NcclError) -> CallError {
    move |error| {
        // SAFETY: NCCL gives text that lives as long as the program, or null.
        let text = unsafe {
            let text = sys::ncclGetErrorString(error.0);
            if text.is_null() { None } else { Some(CStr::from_ptr(text)) }
        };
        let reason =
            text.map_or_else(|| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned());
        CallError { call, reason }
    }
}
