//! Writes into a tensor at indices, with candle's signatures and values, and correct gradients.

use candle_core::shape::Dim;
use candle_core::{DType, Result, Tensor};
use distribute_base::internal::Known;

/// Returns `xs` with the elements of `source` at the positions along `dim` that `indexes` contains, like
/// candle's `scatter`.
///
/// If several elements have the same position, the last one is written. `indexes` has the shape of `source`,
/// and both have the shape of `xs` except along `dim`. Overwritten elements of `xs` and of `source` have no
/// gradient; candle 0.11's own `backward` gives them one.
///
/// # Errors
/// - The shapes do not fit.
/// - An index is out of range.
#[doc(alias = "tf.tensor_scatter_nd_update")]
#[doc(alias = "tf.scatter_nd")]
pub fn scatter<D: Dim>(xs: &Tensor, indexes: &Tensor, source: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "scatter")?;
    let (indexes, source) = (indexes.contiguous()?, source.contiguous()?);
    let result = xs.detach().scatter(&indexes, &source.detach(), dim)?;
    let backward = move |[xs, source]: [&Tensor; 2], _: &Tensor, up: &Tensor| {
        let of_xs = xs.track_op().then(|| scattered_over(&indexes, up, dim)).transpose()?;
        let of_source = source.track_op().then(|| of_scattered(&indexes, up, dim)).transpose()?;
        Ok([of_xs, of_source])
    };
    written("scatter", xs, &source, result, backward)
}

/// Returns `xs` with the elements of `source` added at the positions along `dim` that `indexes` contains, like
/// candle's `scatter_add`.
///
/// Shapes are those of [`scatter`]. candle 0.11's own `backward` gives no gradient to elements of `xs` that
/// others are added to.
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
    written("scatter_add", xs, &source, result, backward)
}

fn written<B>(name: &'static str, xs: &Tensor, source: &Tensor, result: Tensor, backward: B) -> Result<Tensor>
where
    B: Fn([&Tensor; 2], &Tensor, &Tensor) -> Result<[Option<Tensor>; 2]> + Send + Sync + 'static,
{
    if !(xs.track_op() || source.track_op()) || result.elem_count() == 0 {
        return Ok(result);
    }
    xs.apply_op2(source, Known::new(name, result, backward))
}

/// Computes the gradient of the `xs` of [`scatter`]: 0 for overwritten elements.
pub fn scattered_over(indexes: &Tensor, up: &Tensor, dim: usize) -> Result<Tensor> {
    let zeros = Tensor::zeros(indexes.shape(), up.dtype(), up.device())?;
    up.contiguous()?.scatter(&indexes.contiguous()?, &zeros, dim)
}

/// Computes the gradient of the source of [`scatter`]: 0 for overwritten elements.
pub fn of_scattered(indexes: &Tensor, up: &Tensor, dim: usize) -> Result<Tensor> {
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
