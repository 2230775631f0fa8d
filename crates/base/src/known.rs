//! Operations of candle whose result is there before candle asks for it, on any device.

use crate::lock::lock;
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Layout, MetalStorage, Result, Shape, Storage,
    Tensor, bail,
};
use std::sync::Mutex;

/// Such an operation, on one, two or three tensors.
pub struct Known<B> {
    name: &'static str,
    /// Until candle has it, in memory of its own.
    result: Mutex<Option<Tensor>>,
    backward: B,
}

impl<B> Known<B> {
    /// An operation with this name, for candle's messages, and this result. `backward` gives the gradients of the
    /// tensors, from these, the result, and the gradient of that.
    pub fn new(name: &'static str, result: Tensor, backward: B) -> Self {
        Self { name, result: Mutex::new(Some(result)), backward }
    }

    fn result(&self) -> Result<Tensor> {
        let result = lock(&self.result).take();
        result.ok_or_else(|| candle_core::Error::msg(format!("{}: it is computed once", self.name)))
    }

    /// The result as the CPU's forward gives it.
    fn cpu(&self) -> Result<(CpuStorage, Shape)> {
        copy(
            &self.result()?,
            |storage| if let Storage::Cpu(storage) = storage { Some(storage) } else { None },
        )
    }

    /// The result as CUDA's forward gives it.
    fn cuda(&self) -> Result<(CudaStorage, Shape)> {
        copy(
            &self.result()?,
            |storage| if let Storage::Cuda(storage) = storage { Some(storage) } else { None },
        )
    }

    /// The result as Metal's forward gives it.
    fn metal(&self) -> Result<(MetalStorage, Shape)> {
        copy(
            &self.result()?,
            |storage| if let Storage::Metal(storage) = storage { Some(storage) } else { None },
        )
    }
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

/// A type for each of several tensors.
macro_rules! of_each {
    ($tensor:ident, $type:ty) => {
        $type
    };
}

/// candle's operations differ in nothing but the number of their tensors.
macro_rules! operation {
    ($operation:ident, $count:literal, $gradients:ty, $($tensor:ident),+) => {
        impl<B> $operation for Known<B>
        where
            B: Fn([&Tensor; $count], &Tensor, &Tensor) -> Result<[Option<Tensor>; $count]> + Send + Sync,
        {
            fn name(&self) -> &'static str {
                self.name
            }

            fn cpu_fwd(&self, $(_: of_each!($tensor, &CpuStorage), _: &Layout),+) -> Result<(CpuStorage, Shape)> {
                self.cpu()
            }

            fn cuda_fwd(&self, $(_: of_each!($tensor, &CudaStorage), _: &Layout),+) -> Result<(CudaStorage, Shape)> {
                self.cuda()
            }

            fn metal_fwd(&self, $(_: of_each!($tensor, &MetalStorage), _: &Layout),+) -> Result<(MetalStorage, Shape)> {
                self.metal()
            }

            fn bwd(&self, $($tensor: &Tensor,)+ result: &Tensor, upstream: &Tensor) -> Result<$gradients> {
                let [$($tensor),+] = (self.backward)([$($tensor),+], result, upstream)?;
                Ok(($($tensor),+))
            }
        }
    };
}
operation!(CustomOp1, 1, Option<Tensor>, first);
operation!(CustomOp2, 2, (Option<Tensor>, Option<Tensor>), first, second);
operation!(CustomOp3, 3, (Option<Tensor>, Option<Tensor>, Option<Tensor>), first, second, third);

/// A result that is there, in the graph of its argument if that depends on a variable. `backward` gives the gradient of
/// the argument, from that and the gradient of the result.
pub fn attach(
    name: &'static str,
    argument: &Tensor,
    result: Tensor,
    backward: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    if !argument.track_op() {
        return Ok(result);
    }
    let backward =
        move |[argument]: [&Tensor; 1], _: &Tensor, up: &Tensor| Ok([Some(backward(argument, up)?)]);
    argument.apply_op1(Known::new(name, result, backward))
}
