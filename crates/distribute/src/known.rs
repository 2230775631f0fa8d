//! Operations of candle whose result is there before candle asks for it, on any device.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Storage, Tensor, bail,
};

/// The result as the CPU's forward gives it.
pub(crate) fn cpu(result: &Tensor) -> Result<(CpuStorage, Shape)> {
    copy(result, |storage| if let Storage::Cpu(storage) = storage { Some(storage) } else { None })
}

/// The result as CUDA's forward gives it.
pub(crate) fn cuda(result: &Tensor) -> Result<(CudaStorage, Shape)> {
    copy(result, |storage| if let Storage::Cuda(storage) = storage { Some(storage) } else { None })
}

/// The result as Metal's forward gives it.
pub(crate) fn metal(result: &Tensor) -> Result<(MetalStorage, Shape)> {
    copy(result, |storage| if let Storage::Metal(storage) = storage { Some(storage) } else { None })
}

fn copy<S: BackendStorage>(result: &Tensor, there: impl Fn(&Storage) -> Option<&S>) -> Result<(S, Shape)> {
    // Of a part, devices would copy the whole that it is a part of.
    let whole = result.is_contiguous() && result.layout().start_offset() == 0;
    let result = if whole { result.clone() } else { result.force_contiguous()? };
    let (storage, layout) = result.storage_and_layout();
    match there(&storage) {
        Some(storage) => Ok((storage.try_clone(layout)?, result.shape().clone())),
        None => bail!("the result is on {:?}, and not where it was asked for", result.device().location()),
    }
}

/// Such an operation on one tensor.
pub(crate) struct Known<B> {
    /// For candle's messages.
    pub(crate) name: &'static str,
    pub(crate) result: Tensor,
    /// The gradient of the tensor, from it and that of the result.
    pub(crate) backward: B,
}

impl<B> CustomOp1 for Known<B>
where
    B: Fn(&Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu(&self.result)
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda(&self.result)
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        metal(&self.result)
    }

    fn bwd(&self, argument: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        (self.backward)(argument, upstream)
    }
}
