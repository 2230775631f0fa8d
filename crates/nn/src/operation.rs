//! Operations on an input, a weight and an optional bias: the implementation of candle's traits that several layers
//! share.

use super::autocast;
use super::widened::Widened;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{Number, is_native, operand};
use std::marker::PhantomData;

/// The forward and backward computation of a layer, as a single operation.
pub(super) trait Operation: Send + Sync + 'static {
    /// The name of the operation in candle's messages.
    const NAME: &'static str;

    /// Computes the elements and the shape of the output from the operands.
    fn forward<T: Number>(
        &self,
        x: Operand<'_, T>,
        weight: Operand<'_, T>,
        bias: Option<&[T]>,
    ) -> Result<(Vec<T>, Shape)>;

    /// Computes the gradients of the input, the weight and the bias from the output `y` and its gradient `upstream`.
    /// All tensors are contiguous. A gradient is `None` if it is not needed or was written into a bucket.
    fn backward<T: Number>(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<[Option<Tensor>; 3]>;
}

/// An operand that an operation reads.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a, T> {
    /// The elements in row-major order.
    pub(super) elements: &'a [T],
    pub(super) shape: &'a Shape,
}

impl<'a, T: Number> Operand<'a, T> {
    pub(super) fn new(storage: &'a CpuStorage, layout: &'a Layout) -> Result<Self> {
        Ok(Self { elements: operand(storage, layout)?, shape: layout.shape() })
    }
}

/// Returns whether [`apply`] supports the operands.
///
/// All operands must have the same dtype, f32 or f64, and be accessible to this crate's loops, and the input must
/// not be empty. Under mixed precision, the input may be in half precision if the others are f32. The layer checks the
/// shapes.
pub(super) fn is_supported(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> bool {
    let dtype = if autocast::widens(x) { DType::F32 } else { x.dtype() };
    let fits = |t: &Tensor| is_native(t) && t.dtype() == dtype;
    matches!(dtype, DType::F32 | DType::F64)
        && x.elem_count() > 0
        && is_native(x)
        && [Some(weight), bias].into_iter().flatten().all(fits)
}

/// Returns an error if an operand has a different dtype than the input. Unlike candle's own error, it names the
/// operands.
pub(super) fn require_dtype(
    operation: &str,
    (name, x): (&str, &Tensor),
    others: &[(&str, &Tensor)],
) -> Result<()> {
    match others.iter().find(|(_, other)| other.dtype() != x.dtype()) {
        Some((other, tensor)) => bail!(
            "{operation}: {other} is {:?}, but {name} is {:?}; convert one of them with to_dtype",
            tensor.dtype(),
            x.dtype()
        ),
        None => Ok(()),
    }
}

/// Returns an error if the output would have more elements than memory can address. The operands may fit into memory
/// even then.
///
/// An empty axis is treated as 1, because candle multiplies the other axes even in that case.
pub(super) fn require_size(name: &str, dims: &[usize]) -> Result<()> {
    let len = dims.iter().try_fold(size_of::<f64>(), |len, dim| len.checked_mul((*dim).max(1)));
    if len.is_some_and(|len| isize::try_from(len).is_ok()) {
        Ok(())
    } else {
        bail!("{name}: the result {dims:?} has more elements than memory has addresses")
    }
}

/// Computes the output of an operation. The operands must be supported; see [`is_supported`].
pub(super) fn apply<O: Operation>(
    operation: O,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => apply_as(Fused { operation, number: PhantomData::<f32> }, x, weight, bias),
        DType::F64 => apply_as(Fused { operation, number: PhantomData::<f64> }, x, weight, bias),
        _ => apply_as(Widened(operation), x, weight, bias),
    }
}

fn apply_as<C: CustomOp2 + CustomOp3 + Send + Sync + 'static>(
    operation: C,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, operation),
        None => x.apply_op2(&weight, operation),
    }
}

/// An implementation of candle's traits for an operation on numbers of type `T`.
struct Fused<O, T> {
    operation: O,
    number: PhantomData<T>,
}

impl<O: Operation, T: Number> Fused<O, T> {
    fn forward(
        &self,
        x: Operand<'_, T>,
        weight: Operand<'_, T>,
        bias: Option<&[T]>,
    ) -> Result<(CpuStorage, Shape)> {
        let (y, shape) = self.operation.forward(x, weight, bias)?;
        Ok((T::to_cpu_storage_owned(y), shape))
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        self.operation.backward::<T>(x, weight, bias, y, &upstream.contiguous()?)
    }
}

impl<O: Operation, T: Number> CustomOp3 for Fused<O, T> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
        bias: &CpuStorage,
        of_bias: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let bias = operand(bias, of_bias)?;
        self.forward(Operand::new(x, of_x)?, Operand::new(weight, of_weight)?, Some(bias))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.backward(x, weight, Some(bias), y, upstream).map(Into::into)
    }
}

impl<O: Operation, T: Number> CustomOp2 for Fused<O, T> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward(Operand::new(x, of_x)?, Operand::new(weight, of_weight)?, None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [x, weight, _] = self.backward(x, weight, None, y, upstream)?;
        Ok((x, weight))
    }
}
