//! Operations whose result is computed before candle runs them, such as collectives. They work on any device.

use crate::lock::lock;
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Layout, MetalStorage, Result, Shape, Storage,
    Tensor, bail,
};
use std::sync::Mutex;

/// An operation on one, two or three tensors whose result is precomputed.
pub struct PrecomputedOp<B> {
    name: &'static str,
    /// The result, in separate memory. It is taken out when candle runs the operation.
    result: Mutex<Option<Tensor>>,
    backward: B,
}

impl<B> PrecomputedOp<B> {
    /// Creates an operation. `name` appears in candle's messages. `backward` computes the gradients of the argument
    /// tensors from these tensors, the result, and the gradient of the result.
    pub fn new(name: &'static str, result: Tensor, backward: B) -> Self {
        Self { name, result: Mutex::new(Some(result)), backward }
    }

    fn result(&self) -> Result<Tensor> {
        let result = lock(&self.result).take();
        result.ok_or_else(|| candle_core::Error::msg(format!("{}: its result was already taken", self.name)))
    }

    /// Returns the result in the form that candle's forward pass on the CPU returns.
    fn cpu(&self) -> Result<(CpuStorage, Shape)> {
        copy(
            &self.result()?,
            |storage| if let Storage::Cpu(storage) = storage { Some(storage) } else { None },
        )
    }

    /// Returns the result in the form that candle's forward pass with CUDA returns.
    fn cuda(&self) -> Result<(CudaStorage, Shape)> {
        copy(
            &self.result()?,
            |storage| if let Storage::Cuda(storage) = storage { Some(storage) } else { None },
        )
    }

    /// Returns the result in the form that candle's forward pass with Metal returns.
    fn metal(&self) -> Result<(MetalStorage, Shape)> {
        copy(
            &self.result()?,
            |storage| if let Storage::Metal(storage) = storage { Some(storage) } else { None },
        )
    }
}

fn copy<S: BackendStorage>(
    result: &Tensor,
    storage_of: impl Fn(&Storage) -> Option<&S>,
) -> Result<(S, Shape)> {
    // Devices would copy the complete tensor that it may be a part of.
    let whole = result.is_contiguous() && result.layout().start_offset() == 0;
    let result = if whole { result.clone() } else { result.force_contiguous()? };
    let (storage, layout) = result.storage_and_layout();
    match storage_of(&storage) {
        Some(storage) => Ok((storage.try_clone(layout)?, result.shape().clone())),
        None => bail!("the result is on {:?}, which is not the requested device", result.device().location()),
    }
}

/// Expands to the given type once for each tensor.
macro_rules! of_each {
    ($tensor:ident, $type:ty) => {
        $type
    };
}

/// Implements one of candle's operation traits. The traits differ only in the number of tensors.
macro_rules! operation {
    ($operation:ident, $count:literal, $gradients:ty, $($tensor:ident),+) => {
        impl<B> $operation for PrecomputedOp<B>
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

/// Connects a precomputed result to the graph of its argument. If the argument does not depend on a variable, returns
/// the result unchanged. `backward` computes the gradient of the argument from the argument and the gradient of the
/// result.
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
    argument.apply_op1(PrecomputedOp::new(name, result, backward))
}
