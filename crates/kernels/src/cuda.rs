//! Kernels on CUDA GPUs. They are compiled by NVRTC, and loaded and launched through candle's device.

use crate::fault::Fault;
use crate::program::precision;
use crate::trial::first_line;
use crate::trusted::{Compiler, TrustedKernels};
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaSlice, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};
use candle_core::cuda_backend::{CudaDType, DeviceId, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Device, Result, Storage, Tensor, WithDType, bail};
use distribute_log::warn_or_stderr;
use distribute_optim::{Kernel, Precision, Program};
use std::panic::catch_unwind;
use std::sync::Arc;

static KERNELS: TrustedKernels<Gpu> = TrustedKernels::new();

/// A program with its kernel for one device.
pub struct Prepared {
    program: Program,
    kernel: Kernel,
    gpu: Gpu,
    /// The compiled kernel; `None` if candle's operations are used instead.
    function: Option<Arc<CudaFunction>>,
}

impl Prepared {
    /// Returns the kernel for tensors like `like`, or `None` if the program or the device or dtype of the tensors does
    /// not support kernels.
    pub fn new(rule: &str, program: &Program, like: &Tensor) -> Option<Self> {
        let (gpu, precision) = (Gpu::of(like)?, precision(like)?);
        let kernel = Kernel::new(program, precision)?;
        let function = KERNELS.get(&gpu, program, &kernel, |fault| {
            let gpu = gpu.cuda.cuda_stream().context().ordinal();
            warn_or_stderr(|| {
                tracing::warn!(
                    "optimizer step: the kernel of {rule} is not used on gpu:{gpu}: {fault}. The update uses candle's \
                     operations instead, with several launches for each weight"
                )
            });
        });
        Some(Self { program: program.clone(), kernel, gpu, function })
    }

    /// Returns `true` if [`new`](Self::new) would create the same kernel for these arguments.
    pub fn is_of(&self, program: &Program, like: &Tensor) -> bool {
        self.program == *program
            && Some(self.kernel.precision) == precision(like)
            && matches!(like.device(), Device::Cuda(cuda) if cuda.id() == self.gpu.id())
    }

    /// Returns `true` if the kernel has passed its trial and may be used.
    pub fn is_trusted(&self) -> bool {
        self.function.is_some()
    }

    /// Launches the kernel, which must be trusted, and returns its results.
    ///
    /// # Errors
    /// Returns candle's error if the launch fails, or if the kernel is not trusted.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match &self.function {
            Some(function) => self.gpu.launch(function, &self.kernel, inputs),
            None => bail!("the kernel must not be used"),
        }
    }
}

struct Gpu {
    device: Device,
    cuda: CudaDevice,
}

impl Gpu {
    fn of(tensor: &Tensor) -> Option<Self> {
        match tensor.device() {
            Device::Cuda(cuda) => Some(Self { device: tensor.device().clone(), cuda: cuda.clone() }),
            _ => None,
        }
    }
}

impl Compiler for Gpu {
    type Id = DeviceId;
    type Function = CudaFunction;

    fn id(&self) -> DeviceId {
        self.cuda.id()
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn compile(&self, kernel: &Kernel) -> std::result::Result<CudaFunction, Fault> {
        let options = Kernel::OPTIONS.map(String::from).to_vec();
        let compile = || {
            let options = CompileOptions { options, ..CompileOptions::default() };
            compile_ptx_with_opts(&kernel.source, options).map(|ptx| ptx.to_src())
        };
        // cudarc panics if NVRTC fails without a message.
        let compiled =
            catch_unwind(compile).map_err(|_| Fault::Compile("it fails without a message".into()))?;
        let ptx = compiled.map_err(|error| match error {
            CompileError::CompileError { nvrtc, log, .. } => {
                Fault::Compile(format!("{nvrtc}: {}", log.to_string_lossy().trim()))
            }
            error => Fault::Compile(error.to_string()),
        })?;
        // Different kernels have the same function name. candle distinguishes their modules by the text.
        let loaded = self.cuda.get_or_load_custom_func(Kernel::NAME, &kernel.source, &ptx);
        loaded.map(|function| function.into_cuda_function()).map_err(|error| Fault::Run(first_line(&error)))
    }

    fn launch(&self, function: &CudaFunction, kernel: &Kernel, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match kernel.precision {
            Precision::F32 => launch::<f32>(&self.cuda, function, kernel, inputs),
            Precision::F64 => launch::<f64>(&self.cuda, function, kernel, inputs),
        }
    }
}

fn launch<T: CudaDType + DeviceRepr + WithDType>(
    device: &CudaDevice,
    function: &CudaFunction,
    kernel: &Kernel,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    const THREADS: u32 = 256;
    // Far more than a GPU runs at once. Each thread continues after the end of the grid.
    const MAX_BLOCKS: usize = 1 << 20;
    let Some(like) = inputs.first() else { return Ok(Vec::new()) };
    let (shape, count) = (like.shape(), like.elem_count());
    if count == 0 {
        // CUDA refuses launches without threads, and tensors without elements share no memory.
        return Ok(vec![like.clone(); kernel.outputs]);
    }
    let read = |input: &usize| match inputs.get(*input) {
        Some(input) if input.shape() == shape => input.contiguous(),
        Some(input) => bail!("a rule's inputs have the shapes {shape:?} and {:?}", input.shape()),
        None => bail!("the program reads input {input} of {}", inputs.len()),
    };
    let read = kernel.inputs.iter().map(read).collect::<Result<Vec<_>>>()?;
    let addresses = read.iter().map(|input| address::<T>(device, input)).collect::<Result<Vec<_>>>()?;
    // SAFETY: any bits are numbers, and this launch writes all of them before later work in the queue reads them.
    let room = |_| unsafe { device.alloc::<T>(count) };
    let mut results: Vec<CudaSlice<T>> = (0..kernel.outputs).map(room).collect::<Result<_>>()?;
    let constants: Vec<T> = kernel.constants.iter().map(|number| T::from_f64(*number)).collect();
    let elements = count as u64;
    let stream = device.cuda_stream();
    let mut call = stream.launch_builder(function);
    call.arg(&elements);
    for address in &addresses {
        call.arg(address);
    }
    for result in &mut results {
        call.arg(result);
    }
    for constant in &constants {
        call.arg(constant);
    }
    let grid = LaunchConfig {
        grid_dim: (count.div_ceil(THREADS as usize).min(MAX_BLOCKS) as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the function was compiled from this kernel's text, which has these parameters, in this order and with
    // these types; `T` is its element type. It only reads elements below `count`, from inputs for which `address` has
    // verified the number of elements, the type and the device. It only writes elements below `count`, to memory of
    // that size which nothing else uses. Inputs live until the call is in the queue, and candle frees their memory in
    // the order of its stream, which is that of the call.
    unsafe { call.launch(grid) }.w()?;
    // This second request makes cudarc record that the queue, up to now, reads them.
    read.iter().try_for_each(|input| address::<T>(device, input).map(drop))?;
    let tensor = |result| {
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(result, device.clone()));
        Tensor::from_storage(storage, shape, BackpropOp::none(), false)
    };
    Ok(results.into_iter().map(tensor).collect())
}

/// Returns the address of the elements of a contiguous tensor on the device.
///
/// The storage is only locked during the call. One tensor may be several inputs, and a waiting writer must not acquire
/// the lock between two reads by the same thread.
fn address<T: CudaDType>(device: &CudaDevice, input: &Tensor) -> Result<u64> {
    let (storage, layout) = input.storage_and_layout();
    let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("a rule's inputs have to be contiguous, on a GPU")
    };
    if storage.device.id() != device.id() {
        bail!("a rule's inputs are on different GPUs")
    }
    let Some(elements) = storage.as_cuda_slice::<T>()?.try_slice(start..end) else {
        bail!("a rule's input ends after its memory")
    };
    let stream = device.cuda_stream();
    let (address, _reads) = elements.device_ptr(&stream);
    Ok(address)
}
