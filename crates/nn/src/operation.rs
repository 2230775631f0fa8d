//! Operations on an input, a weight and usually a bias: the implementation of candle's traits for all layers.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{Number, is_native, operand};
use std::marker::PhantomData;

/// A layer's computation as one operation, forward and backward.
pub(super) trait Operation: Send + Sync + 'static {
    /// The name in candle's messages.
    const NAME: &'static str;

    /// Computes the output's elements and shape.
    fn forward<T: Number>(
        &self,
        x: Operand<'_, T>,
        weight: Operand<'_, T>,
        bias: Option<&[T]>,
    ) -> Result<(Vec<T>, Shape)>;

    /// Computes the gradients of input, weight and bias from `upstream`, that of the output `y`. All tensors
    /// are contiguous.
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
    fn new(storage: &'a CpuStorage, layout: &'a Layout) -> Result<Self> {
        Ok(Self { elements: operand(storage, layout)?, shape: layout.shape() })
    }
}

/// Whether [`apply`] supports the operands.
///
/// They have to be of one dtype, f32 or f64, that this crate's loops compute, and the input has to have
/// elements. The layer checks the shapes.
pub(super) fn takes(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> bool {
    let fits = |t: &Tensor| is_native(t) && t.dtype() == x.dtype();
    matches!(x.dtype(), DType::F32 | DType::F64)
        && x.elem_count() > 0
        && [Some(x), Some(weight), bias].into_iter().flatten().all(fits)
}

/// Refuses operands of another dtype than the input's. The error names the operands, which candle's own
/// message does not.
pub(super) fn require_dtype(
    operation: &str,
    (name, x): (&str, &Tensor),
    others: &[(&str, &Tensor)],
) -> Result<()> {
    match others.iter().find(|(_, other)| other.dtype() != x.dtype()) {
        Some((other, tensor)) => bail!(
            "{operation}: {other} is of {:?}, but {name} of {:?}; convert one of them by to_dtype",
            tensor.dtype(),
            x.dtype()
        ),
        None => Ok(()),
    }
}

/// Refuses an output of more elements than memory has addresses, which is possible even if the operands fit.
///
/// An empty axis counts as one element, because candle multiplies the other axes even then.
pub(super) fn require_size(name: &str, dims: &[usize]) -> Result<()> {
    let len = dims.iter().try_fold(size_of::<f64>(), |len, dim| len.checked_mul((*dim).max(1)));
    if len.is_some_and(|len| isize::try_from(len).is_ok()) {
        Ok(())
    } else {
        bail!("{name}: the result {dims:?} has more elements than memory has addresses")
    }
}

/// Computes the output of an operation for operands that it [`takes`].
pub(super) fn apply<O: Operation>(
    operation: O,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => apply_of::<O, f32>(operation, x, weight, bias),
        _ => apply_of::<O, f64>(operation, x, weight, bias),
    }
}

fn apply_of<O: Operation, T: Number>(
    operation: O,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let operation = Fused { operation, number: PhantomData::<T> };
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, operation),
        None => x.apply_op2(&weight, operation),
    }
}

/// An operation on numbers `T` that implements candle's traits.
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
