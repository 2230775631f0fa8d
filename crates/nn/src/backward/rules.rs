//! The gradients of the arguments of each of candle's operations.

use super::{NodeGradients, elementwise, shapes};
use crate::gradients as nn;
use candle_core::op::Op;
use candle_core::{Result, Tensor};
use distribute_base::internal::to_device;

/// Adds the gradients of the arguments of `op` to `all`, given the gradient `upstream` of its result.
pub(super) fn apply(op: &Op, result: &Tensor, upstream: Tensor, all: &mut NodeGradients) -> Result<()> {
    let up = &upstream;
    match op {
        Op::Binary(left, right, op) => elementwise::binary(*op, [left, right], result, up, all),
        Op::Unary(x, op) => match elementwise::unary(*op) {
            Some(rule) => all.add(x, || rule(x, result, up)),
            None => Ok(()),
        },
        Op::Elu(x, alpha) => all.add(x, || elementwise::elu(x, *alpha, result, up)),
        Op::Powf(x, exponent) => all.add(x, || elementwise::powf(x, *exponent, up)),
        Op::Affine { arg, mul, .. } => all.add(arg, || up.affine(*mul, 0.)),
        Op::WhereCond(condition, on_true, on_false) => {
            let zeros = up.zeros_like()?;
            all.add(on_true, || condition.where_cond(up, &zeros))?;
            all.add(on_false, || condition.where_cond(&zeros, up))
        }
        Op::Cmp(..) => Ok(()),
        Op::Reduce(x, op, kept) => shapes::reduce(*op, x, kept, result, up, all),
        Op::Matmul(left, right) => {
            all.add(left, || up.matmul(&right.t()?))?;
            all.add(right, || left.t()?.matmul(up))
        }
        Op::ToDType(x) => all.add(x, || up.to_dtype(x.dtype())),
        Op::ToDevice(x) => all.add(x, || to_device(up, x.device())),
        Op::Copy(x) => all.add(x, || Ok(upstream.clone())),
        Op::Reshape(x) => all.add(x, || shapes::view_gradient(x, result, up)),
        Op::Broadcast(x) => all.add(x, || shapes::broadcast_gradient(x, up)),
        Op::Transpose(x, first, second) => all.add(x, || up.transpose(*first, *second)),
        Op::Permute(x, order) => all.add(x, || shapes::permute_gradient(order, up)),
        Op::Narrow(x, axis, start, len) => {
            all.add(x, || up.pad_with_zeros(*axis, *start, x.dims()[*axis] - start - len))
        }
        Op::Cat(parts, axis) => shapes::cat(parts, *axis, up, all),
        Op::SliceScatter0(x, part, start) => {
            all.add(part, || up.narrow(0, *start, part.dim(0)?))?;
            all.add(x, || up.slice_scatter0(&part.zeros_like()?, *start))
        }
        Op::Gather(x, indexes, axis) if shapes::differ_on_other_axes(*axis, x, indexes) => {
            all.add(x, || shapes::gather_gradient(x, indexes, *axis, up))
        }
        Op::Gather(x, indexes, axis) => {
            all.add_to(x, |sum| sum.map_or_else(|| x.zeros_like(), Ok)?.scatter_add(indexes, up, *axis))
        }
        Op::IndexSelect(x, indexes, axis) => all.add_to(x, |sum| {
            sum.map_or_else(|| x.zeros_like(), Ok)?.index_add(&indexes.contiguous()?, up, *axis)
        }),
        Op::IndexAdd(x, indexes, source, axis) => {
            all.add(x, || Ok(upstream.clone()))?;
            all.add(source, || up.index_select(indexes, *axis))
        }
        Op::Scatter(x, indexes, source, axis) => {
            all.add(x, || nn::scatter_input_gradient(indexes, up, *axis))?;
            all.add(source, || nn::scatter_source_gradient(indexes, up, *axis))
        }
        Op::ScatterAdd(x, indexes, source, axis) => {
            all.add(x, || Ok(upstream.clone()))?;
            all.add(source, || up.gather(indexes, *axis))
        }
        Op::AvgPool2D { arg, kernel_size, stride } => {
            all.add(arg, || nn::avg_pool2d(arg, *kernel_size, *stride, up))
        }
        Op::MaxPool2D { arg, kernel_size, stride } => {
            all.add(arg, || nn::max_pool2d(arg, *kernel_size, *stride, up))
        }
        Op::UpsampleNearest1D { arg, .. } => all.add(arg, || nn::upsample_nearest1d(arg, up)),
        Op::UpsampleNearest2D { arg, .. } => all.add(arg, || nn::upsample_nearest2d(arg, up)),
        Op::UpsampleBilinear2D { arg, align_corners, .. } => {
            all.add(arg, || nn::upsample_bilinear2d(arg, *align_corners, result, up))
        }
        Op::Conv1D { arg, kernel, padding, stride, dilation } => {
            add(all, [arg, kernel], nn::conv1d(arg, kernel, [*padding, *stride, *dilation], up)?)
        }
        Op::Conv2D { arg, kernel, padding, stride, dilation } => {
            add(all, [arg, kernel], nn::conv2d(arg, kernel, [*padding, *stride, *dilation], up)?)
        }
        Op::ConvTranspose1D { arg, kernel, padding, stride, dilation, .. } => {
            add(all, [arg, kernel], nn::conv_transpose1d(arg, kernel, [*padding, *stride, *dilation], up)?)
        }
        Op::ConvTranspose2D { arg, kernel, padding, stride, dilation, .. } => {
            add(all, [arg, kernel], nn::conv_transpose2d(arg, kernel, [*padding, *stride, *dilation], up)?)
        }
        Op::CustomOp1(x, custom) => add(all, [x], [custom.bwd(x, result, up)?]),
        Op::CustomOp2(first, second, custom) => {
            let (of_first, of_second) = custom.bwd(first, second, result, up)?;
            add(all, [first, second], [of_first, of_second])
        }
        Op::CustomOp3(first, second, third, custom) => {
            let (of_first, of_second, of_third) = custom.bwd(first, second, third, result, up)?;
            add(all, [first, second, third], [of_first, of_second, of_third])
        }
    }
}

/// Adds the gradients that are not `None` to `all`.
fn add<const N: usize>(
    all: &mut NodeGradients,
    arguments: [&Tensor; N],
    gradients: [Option<Tensor>; N],
) -> Result<()> {
    for (argument, gradient) in arguments.into_iter().zip(gradients) {
        if let Some(gradient) = gradient {
            all.add(argument, || Ok(gradient))?;
        }
    }
    Ok(())
}
