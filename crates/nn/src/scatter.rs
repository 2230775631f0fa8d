//! Writes to a tensor at indices, with the same signatures and results as in candle, but with correct gradients.

use candle_core::shape::Dim;
use candle_core::{DType, Result, Tensor};
use distribute_base::internal::PrecomputedOp;

/// Returns `xs` with elements replaced by those of `source`, like candle's `scatter`. `indexes` contains the position
/// along `dim` of each element of `source`.
///
/// If several elements have the same position, the last one is written. `indexes` has the same shape as `source`; both
/// have the shape of `xs` except along `dim`. Elements of `xs` and `source` that are overwritten have the gradient 0;
/// candle 0.11's own backward pass computes a different one.
///
/// # Errors
/// Returns an error in these cases:
/// - `xs` has no dimension `dim`, or the shapes do not match.
/// - An index is out of range.
#[doc(alias = "tf.tensor_scatter_nd_update")]
#[doc(alias = "tf.scatter_nd")]
pub fn scatter<D: Dim>(xs: &Tensor, indexes: &Tensor, source: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "scatter")?;
    let (indexes, source) = (indexes.contiguous()?, source.contiguous()?);
    let result = xs.detach().scatter(&indexes, &source.detach(), dim)?;
    let backward = move |[xs, source]: [&Tensor; 2], _: &Tensor, up: &Tensor| {
        let of_xs = xs.track_op().then(|| scatter_input_gradient(&indexes, up, dim)).transpose()?;
        let of_source = source.track_op().then(|| scatter_source_gradient(&indexes, up, dim)).transpose()?;
        Ok([of_xs, of_source])
    };
    with_gradient("scatter", xs, &source, result, backward)
}

/// Returns `xs` with the elements of `source` added, like candle's `scatter_add`. `indexes` contains the position along
/// `dim` of each element of `source`.
///
/// The shapes must match as in [`scatter`]. candle 0.11's own backward pass computes no gradient for elements of `xs`
/// to which other elements are added.
///
/// # Errors
/// Returns the errors of [`scatter`].
#[doc(alias = "tf.tensor_scatter_nd_add")]
pub fn scatter_add<D: Dim>(xs: &Tensor, indexes: &Tensor, source: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "scatter_add")?;
    let (indexes, source) = (indexes.contiguous()?, source.contiguous()?);
    let result = xs.detach().contiguous()?.scatter_add(&indexes, &source.detach(), dim)?;
    let backward = move |[_, source]: [&Tensor; 2], _: &Tensor, up: &Tensor| {
        let of_source = source.track_op().then(|| up.contiguous()?.gather(&indexes, dim)).transpose()?;
        Ok([Some(up.clone()), of_source])
    };
    with_gradient("scatter_add", xs, &source, result, backward)
}

fn with_gradient<B>(
    name: &'static str,
    xs: &Tensor,
    source: &Tensor,
    result: Tensor,
    backward: B,
) -> Result<Tensor>
where
    B: Fn([&Tensor; 2], &Tensor, &Tensor) -> Result<[Option<Tensor>; 2]> + Send + Sync + 'static,
{
    if !(xs.track_op() || source.track_op()) || result.elem_count() == 0 {
        return Ok(result);
    }
    xs.apply_op2(source, PrecomputedOp::new(name, result, backward))
}

/// Computes the gradient of the argument `xs` of [`scatter`] from the gradient `up` of its result. The gradient is 0
/// for elements that were overwritten.
pub fn scatter_input_gradient(indexes: &Tensor, up: &Tensor, dim: usize) -> Result<Tensor> {
    let zeros = Tensor::zeros(indexes.shape(), up.dtype(), up.device())?;
    up.contiguous()?.scatter(&indexes.contiguous()?, &zeros, dim)
}

/// Computes the gradient of the argument `source` of [`scatter`] from the gradient `up` of its result. The gradient is
/// 0 for elements that were overwritten.
pub fn scatter_source_gradient(indexes: &Tensor, up: &Tensor, dim: usize) -> Result<Tensor> {
    let (indexes, up) = (indexes.contiguous()?, up.contiguous()?);
    let gradient = up.gather(&indexes, dim)?;
    let len = indexes.dim(dim)?;
    if len < 2 {
        return Ok(gradient);
    }
    // Scatter each element's index along the axis in the same way: an element was kept if its own index is there.
    let dtype = if len < 1 << f32::MANTISSA_DIGITS { DType::F32 } else { DType::F64 };
    let mut shape = vec![1; indexes.rank()];
    shape[dim] = len;
    let numbers = Tensor::arange(0, len as i64, up.device())?.to_dtype(dtype)?.reshape(shape)?;
    let numbers = numbers.broadcast_as(indexes.shape())?.contiguous()?;
    let last = Tensor::zeros(up.shape(), dtype, up.device())?.scatter(&indexes, &numbers, dim)?;
    let is_there = last.gather(&indexes, dim)?.eq(&numbers)?;
    is_there.where_cond(&gradient, &gradient.zeros_like()?)
}
