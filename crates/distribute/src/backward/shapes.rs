//! Gradients of operations that move elements, and of reductions.

use super::Gradients;
use candle_core::op::ReduceOp;
use candle_core::{Result, Tensor};

/// Adds the gradient of a reduction's argument; `kept` is the shape of the result with the reduced axes kept as axes of size 1.
/// The gradient of a maximum or minimum is shared by all elements that are equal to it, as in TensorFlow.
pub(super) fn reduce(
    op: ReduceOp,
    x: &Tensor,
    kept: &[usize],
    result: &Tensor,
    up: &Tensor,
    all: &mut Gradients,
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

/// The gradient of a tensor that was broadcast: the sum over all copies of each element.
pub(super) fn of_broadcast(x: &Tensor, up: &Tensor) -> Result<Tensor> {
    let new = up.rank() - x.rank();
    let copied = |axis: &usize| *axis < new || up.dims()[*axis] != x.dims()[axis - new];
    let axes: Vec<usize> = (0..up.rank()).filter(copied).collect();
    up.sum_keepdim(axes)?.reshape(x.shape())
}

pub(super) fn of_permute(order: &[usize], up: &Tensor) -> Result<Tensor> {
    let mut back = vec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        back[*from] = to;
    }
    up.permute(back)
}

pub(super) fn cat(parts: &[Tensor], axis: usize, up: &Tensor, all: &mut Gradients) -> Result<()> {
    let mut start = 0;
    for part in parts {
        let len = part.dim(axis)?;
        all.add(part, || up.narrow(axis, start, len))?;
        start += len;
    }
    Ok(())
}
