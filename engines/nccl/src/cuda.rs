//! A GPU and its communicator. CUDA is called through cudarc, and NCCL through `distribute-nccl-library`.

use crate::library::Library;
use crate::offer::{Gpu, UniqueId};
use crate::{CallError, Error};
use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DriverError};
use distribute_nccl_library::{Communicators, Nccl, Vectors};
use distribute_net::Number;
use distribute_net::polling::wait_or_leave;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// The divisor of the GPU's free memory that gives the maximum size of a vector.
const PARTS: usize = 2;

/// The maximum time to wait for the abort of a communicator. On a GPU that hangs, the abort never completes.
const FAREWELL: Duration = Duration::from_secs(5);

/// A GPU and, once it is created, its communicator.
pub(crate) struct Cuda {
    nccl: &'static Nccl,
    stream: Arc<CudaStream>,
    communicator: Option<Communicators>,
    in_flight: Option<InFlight>,
}

/// A sum that the GPU is computing.
struct InFlight {
    vector: CudaSlice<u8>,
    /// The event that shows that the GPU has finished; `None` until all of NCCL's work is in the GPU's queue.
    done: Option<CudaEvent>,
}

impl Cuda {
    /// Opens the GPU with CUDA's number `gpu`. The driver must have been [checked](crate::installed::check_driver).
    ///
    /// # Errors
    /// - [`Error::NoGpu`]: there is no such GPU.
    /// - [`Error::Call`]: a call to CUDA's driver has failed.
    pub fn new(nccl: &'static Nccl, gpu: usize) -> Result<Self, Error> {
        let count = CudaContext::device_count().map_err(driver("cuDeviceGetCount"))?;
        let count = usize::try_from(count).unwrap_or(0);
        if gpu >= count {
            return Err(Error::NoGpu { gpu, count });
        }
        let context = CudaContext::new(gpu).map_err(driver("cuDevicePrimaryCtxRetain"))?;
        let stream = context.new_stream().map_err(driver("cuStreamCreate"))?;
        Ok(Self { nccl, stream, communicator: None, in_flight: None })
    }

    fn communicator(&self) -> Result<&Communicators, CallError> {
        let gone = || CallError { call: "ncclAllReduce", reason: "the communicator was abandoned".into() };
        self.communicator.as_ref().ok_or_else(gone)
    }

    /// Returns whether NCCL has completed the last operation, which the function `call` started.
    ///
    /// # Errors
    /// Returns an error of `call` if the operation has failed, of `ncclAllReduce` if there is no communicator, and of
    /// `ncclCommGetAsyncError` if NCCL does not return a status.
    fn is_idle(&self, call: &'static str) -> Result<bool, CallError> {
        Ok(self.nccl.busy(self.communicator()?, call)?.is_empty())
    }

    fn bind(&self) -> Result<(), CallError> {
        self.stream.context().bind_to_thread().map_err(driver("cuCtxSetCurrent"))
    }
}

impl Library for Cuda {
    fn release(&self) -> i32 {
        self.nccl.release()
    }

    fn gpu(&self) -> Result<Gpu, CallError> {
        let uuid = self.stream.context().uuid().map_err(driver("cuDeviceGetUuid"))?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    fn unique_id(&self) -> Result<UniqueId, CallError> {
        self.nccl.unique_id()
    }

    fn link(&mut self, id: UniqueId, worker: usize, workers: usize) -> Result<(), CallError> {
        self.bind()?;
        let communicator = Communicators::new(&[self.stream.context().ordinal()]);
        let begun = self.nccl.link_across(&communicator, id, worker, workers);
        self.communicator = Some(communicator);
        begun
    }

    fn is_linked(&mut self) -> Result<bool, CallError> {
        self.is_idle("ncclCommInitRankConfig")
    }

    fn room(&self) -> usize {
        let free = self.stream.context().mem_get_info().map_or(0, |(free, _)| free);
        free / PARTS
    }

    fn begin(&mut self, vector: &[u8], number: Number) -> Result<(), CallError> {
        let communicator = self.communicator()?;
        self.bind()?;
        let mut on_gpu = self.stream.clone_htod(vector).map_err(driver("cuMemcpyHtoDAsync"))?;
        // NCCL's numbers of these types.
        let (number, size) = match number {
            Number::F32 => (7, size_of::<f32>()),
            Number::F64 => (8, size_of::<f64>()),
        };
        let begun = {
            let (at, _in_order) = on_gpu.device_ptr_mut(&self.stream);
            let at = at as *mut c_void;
            let vectors = Vectors { from: at, to: at, count: vector.len() / size, number };
            // SAFETY: the memory holds the given number of elements, and is kept until the stream has completed the sum
            // or the communicator is aborted. The sum is made in place, which NCCL allows.
            unsafe { self.nccl.all_reduce(communicator, 0, vectors, self.stream.cu_stream().cast()) }
        };
        // The vector is kept even after a failure: queued work may use it until the communicator is aborted.
        self.in_flight = Some(InFlight { vector: on_gpu, done: None });
        begun
    }

    fn sum(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        if !self.is_idle("ncclAllReduce")? {
            return Ok(None);
        }
        let Some(in_flight) = &mut self.in_flight else {
            return Err(CallError { call: "ncclAllReduce", reason: "no sum has begun".into() });
        };
        let done = match &in_flight.done {
            Some(done) => done,
            None => {
                let event = self.stream.record_event(None).map_err(driver("cuEventRecord"))?;
                in_flight.done.insert(event)
            }
        };
        if !done.try_is_complete().map_err(driver("cuEventQuery"))? {
            return Ok(None);
        }
        let sum = self.stream.clone_dtoh(&in_flight.vector).map_err(driver("cuMemcpyDtoHAsync"))?;
        // The queue is otherwise empty.
        self.stream.synchronize().map_err(driver("cuStreamSynchronize"))?;
        self.in_flight = None;
        Ok(Some(sum))
    }

    fn abort(&mut self) {
        let in_flight = self.in_flight.take();
        let (nccl, Some(communicator)) = (self.nccl, self.communicator.take()) else { return };
        wait_or_leave("nccl-abort", FAREWELL, move || {
            nccl.abort(communicator);
            // Until then, the GPU may use it.
            drop(in_flight);
        });
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.abort();
    }
}

fn driver(call: &'static str) -> impl FnOnce(DriverError) -> CallError {
    move |error| CallError { call, reason: error.to_string() }
}
