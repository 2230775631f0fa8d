//! The conversions of mixed precision: the dtypes in which layers compute and that they return.

use candle_core::{DType, Result, Tensor};
use distribute_base::MixedPrecision;
use distribute_base::internal::accumulation_dtype;

/// Returns the dtype to which a layer with weights converts its operands under mixed precision. Returns `None` if the
/// operands stay as they are: mixed precision is off, both operands already have the compute dtype, or the dtype of one
/// is neither f32 nor half precision.
pub(super) fn compute_dtype(x: &Tensor, weight: &Tensor) -> Option<DType> {
    let dtype = MixedPrecision::current().compute_dtype()?;
    let converts = |tensor: &Tensor| tensor.dtype() == DType::F32 || is_half(tensor);
    (converts(x) && converts(weight) && [x, weight].into_iter().any(|t| t.dtype() != dtype)).then_some(dtype)
}

/// Returns the dtype in which candle's convolutions compute activations of `dtype` on the device of `x`. On CPUs this
/// is f32, because candle's convolutions do not support half precision there.
pub(super) fn convolution_dtype(x: &Tensor, dtype: DType) -> DType {
    if x.device().is_cpu() { DType::F32 } else { dtype }
}

/// Converts parameters to the dtype of a layer's input.
pub(super) fn parameters(
    weight: &Tensor,
    bias: Option<&Tensor>,
    dtype: DType,
) -> Result<(Tensor, Option<Tensor>)> {
    Ok((weight.to_dtype(dtype)?, bias.map(|bias| bias.to_dtype(dtype)).transpose()?))
}

/// Converts the f32 result of a table lookup to the dtype of activations under mixed precision. Returns any other
/// result unchanged.
pub(super) fn activations(y: Tensor) -> Result<Tensor> {
    match MixedPrecision::current().compute_dtype() {
        Some(dtype) if y.dtype() == DType::F32 => y.to_dtype(dtype),
        _ => Ok(y),
    }
}

/// Returns the dtype of the state that a layer passes from step to step if its variables have `dtype`: that of
/// activations if `dtype` is f32 and mixed precision is on, otherwise `dtype`.
pub(super) fn state_dtype(dtype: DType) -> DType {
    MixedPrecision::current().compute_dtype().filter(|_| dtype == DType::F32).unwrap_or(dtype)
}

/// Returns whether mixed precision is on and `x` is in half precision, so that operations compute with `x` in f32.
pub(super) fn widens(x: &Tensor) -> bool {
    MixedPrecision::current() != MixedPrecision::Off && is_half(x)
}

/// Converts a tensor in half precision to f32. Returns a tensor of any other dtype unchanged.
pub(super) fn widened(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(accumulation_dtype(x.dtype()))
}

/// Converts the operands of a loss to f32 under mixed precision; `None` if neither needs a conversion.
pub(super) fn loss_operands(x: &Tensor, targets: &Tensor) -> Result<Option<(Tensor, Tensor)>> {
    if widens(x) || widens(targets) {
        return Ok(Some((widened(x)?, widened(targets)?)));
    }
    Ok(None)
}

fn is_half(tensor: &Tensor) -> bool {
    accumulation_dtype(tensor.dtype()) != tensor.dtype()
}
