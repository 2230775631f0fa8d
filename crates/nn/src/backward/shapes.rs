//! Gradients of operations that move elements, and of reductions.

use super::NodeGradients;
use candle_core::op::ReduceOp;
use candle_core::{Result, Tensor};

/// Adds the gradient of a reduction's argument to `all`. `kept` is the shape of the result if reduced axes are kept
/// with size 1. All elements that are equal to a maximum or minimum share its gradient equally, as in TensorFlow.
pub(super) fn reduce(
    op: ReduceOp,
    x: &Tensor,
    kept: &[usize],
    result: &Tensor,
    up: &Tensor,
    all: &mut NodeGradients,
) -> Result<()> {
    let spread = |tensor: &Tensor| tensor.reshape(kept)?.broadcast_as(x.shape());
    match op {
        ReduceOp::Sum => all.add(x, || spread(up)),
        ReduceOp::Max | ReduceOp::Min => all.add(x, || {
            let hit = x.eq(&spread(result)?)?.to_dtype(up.dtype())?;
            let reduced = kept.iter().zip(x.dims()).enumerate().filter(|(_, (kept, dim))| kept != dim);
            let axes: Vec<usize> = reduced.map(|(axis, _)| axis).collect();
            // NaN has no equal.
            let count = hit.sum_keepdim(axes)?.maximum(1.)?;
            hit * spread(&(up.reshape(kept)? / count)?)?
        }),
        ReduceOp::ArgMin | ReduceOp::ArgMax => Ok(()),
    }
}

/// Returns the gradient of a tensor that was broadcast: for each element, the sum of the gradients of its copies.
pub(super) fn broadcast_gradient(x: &Tensor, up: &Tensor) -> Result<Tensor> {
    let new = up.rank() - x.rank();
    let copied = |axis: &usize| *axis < new || up.dims()[*axis] != x.dims()[axis - new];
    let axes: Vec<usize> = (0..up.rank()).filter(copied).collect();
    up.sum_keepdim(axes)?.reshape(x.shape())
}

pub(super) fn permute_gradient(order: &[usize], up: &Tensor) -> Result<Tensor> {
    let mut back = vec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        back[*from] = to;
    }
    up.permute(back)
}

pub(super) fn cat(parts: &[Tensor], axis: usize, up: &Tensor, all: &mut NodeGradients) -> Result<()> {
    let mut start = 0;
    for part in parts {
        let len = part.dim(axis)?;
        all.add(part, || up.narrow(axis, start, len))?;
        start += len;
    }
    Ok(())
}

/// Returns the gradient of the argument of a reshape, or of `unfold`, which candle's graph records as a reshape.
pub(super) fn view_gradient(x: &Tensor, result: &Tensor, up: &Tensor) -> Result<Tensor> {
    // Strides of tensors without elements have no meaning.
    let reshaped = x.elem_count() == 0 || (result.elem_count() == x.elem_count() && result.is_contiguous());
    let Some(axis) = (!reshaped).then(|| window_axis(x, result)).flatten() else {
        return up.reshape(x.shape());
    };
    let (rank, len) = (x.rank(), x.dims()[axis]);
    let (windows, size) = (result.dims()[axis], result.dims()[rank]);
    // If all elements are one in memory, strides do not show it.
    let step = match result.stride()[axis].checked_div(x.stride()[axis]) {
        Some(step) => step,
        None => (len - size) / (windows - 1).max(1),
    };
    // The elements of a window are next to each other, after those of the previous window.
    let mut order: Vec<usize> = (0..rank).collect();
    order.insert(axis + 1, rank);
    let mut dims = x.dims().to_vec();
    dims[axis] = windows * size;
    let source = up.permute(order)?.reshape(dims)?;
    let places = (0..windows).flat_map(|window| (0..size).map(move |place| (window * step + place) as i64));
    let places = Tensor::from_iter(places, x.device())?;
    x.zeros_like()?.index_add(&places, &source, axis)
}

/// Returns the axis of `x` that was split into windows. Returns `None` if `result` does not have the layout that
/// `unfold` produces.
fn window_axis(x: &Tensor, result: &Tensor) -> Option<usize> {
    let (rank, dims, strides) = (x.rank(), result.dims(), result.stride());
    let kept = |axis: usize| dims[axis] == x.dims()[axis] && strides[axis] == x.stride()[axis];
    let is_of = |axis: &usize| {
        strides[rank] == x.stride()[*axis] && (0..rank).all(|other| other == *axis || kept(other))
    };
    (result.rank() == rank + 1).then(|| (0..rank).find(is_of)).flatten()
}

/// Returns `true` if the shapes differ along an axis other than `axis`.
pub(super) fn differ_on_other_axes(axis: usize, x: &Tensor, indexes: &Tensor) -> bool {
    x.dims().iter().zip(indexes.dims()).enumerate().any(|(other, (x, len))| other != axis && x != len)
}

/// Returns the gradient of the source of a gather whose indexes are smaller than the source along other axes than
/// `axis`.
pub(super) fn gather_gradient(x: &Tensor, indexes: &Tensor, axis: usize, up: &Tensor) -> Result<Tensor> {
    if up.elem_count() == 0 {
        return x.zeros_like();
    }
    let three = |dims: &[usize]| -> [usize; 3] {
        [dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()]
    };
    let ([before, len, behind], [some, count, few]) = (three(x.dims()), three(indexes.dims()));
    let (indexes, up) = (indexes.reshape((some, count, few))?, up.reshape((some, count, few))?);
    let part = Tensor::zeros((some, len, few), up.dtype(), up.device())?.scatter_add(&indexes, &up, 1)?;
    part.pad_with_zeros(2, 0, behind - few)?.pad_with_zeros(0, 0, before - some)?.reshape(x.shape())
}
