//! Gradients of candle's convolutions with one group, including those that candle computes wrongly or refuses.

use super::patches::covered;
use super::{Fused, Operation, Patches, padded};
use crate::operation;
use candle_core::{DType, Result, Tensor, bail};
use candle_nn::Conv2dConfig;
use distribute_base::internal::computed_in;

/// The gradients of input and weight; `None` for one that was written into a bucket or was not requested.
type Both = [Option<Tensor>; 2];

/// The padding, the stride and the dilation.
type Sizes = [usize; 3];

/// Computes the gradients of candle's `conv2d` of `x`, `[n, in, height, width]`, and a weight `[out, in, …, …]`.
pub fn of_conv2d(x: &Tensor, weight: &Tensor, sizes: Sizes, up: &Tensor) -> Result<Both> {
    if let Some(zeros) = of_nothing(x, weight, up)? {
        return Ok(zeros);
    }
    if computed_in(x.dtype()) != x.dtype() {
        return in_f32(x, weight, up, |x, weight, up| of_conv2d(x, weight, sizes, up));
    }
    let [padding, stride, dilation] = sizes;
    let config = Conv2dConfig { padding, stride, dilation, groups: 1, cudnn_fwd_algo: None };
    let patches = Patches::new(x.dims(), weight.dims(), &config);
    if let Some(patches) = patches.filter(|_| operation::takes(x, weight, None)) {
        let (x, weight, up) = (x.contiguous()?, weight.contiguous()?, up.contiguous()?);
        let fused = Fused { patches };
        let [of_x, of_weight, _] = match x.dtype() {
            DType::F32 => fused.backward::<f32>(&x, &weight, None, &up, &up)?,
            _ => fused.backward::<f64>(&x, &weight, None, &up, &up)?,
        };
        return Ok([of_x, of_weight]);
    }
    // Only the part of the padded image that the kernel covers: for it, candle's own operations are the gradients.
    let [height, width] = extent(up, weight, &config)?;
    let of_x = || {
        let around = up.conv_transpose2d(&weight.detach(), 0, 0, stride, dilation)?;
        let (rows, columns) = (x.dim(2)? + 2 * padding - height, x.dim(3)? + 2 * padding - width);
        let around = around.pad_with_zeros(2, 0, rows)?.pad_with_zeros(3, 0, columns)?;
        around.narrow(2, padding, x.dim(2)?)?.narrow(3, padding, x.dim(3)?)?.contiguous()
    };
    let of_weight = || {
        let around = x.detach().pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
        of_kernel(&around.narrow(2, 0, height)?.narrow(3, 0, width)?, up, stride, dilation)
    };
    Ok([x.track_op().then(of_x).transpose()?, weight.track_op().then(of_weight).transpose()?])
}

/// Computes the gradients of candle's `conv1d` of `x`, `[n, in, length]`, and a weight `[out, in, width]`.
pub fn of_conv1d(x: &Tensor, weight: &Tensor, sizes: Sizes, up: &Tensor) -> Result<Both> {
    let [padding, stride, dilation] = sizes;
    // The single row gets no padding above and below.
    let rows = padded("conv1d", x, 2, [padding; 2])?.unsqueeze(2)?;
    let sizes = [0, stride, dilation];
    let [of_x, of_weight] = of_conv2d(&rows, &weight.unsqueeze(2)?, sizes, &up.unsqueeze(2)?)?;
    let of_x = of_x.map(|of_x| of_x.squeeze(2)?.narrow(2, padding, x.dim(2)?)?.contiguous());
    Ok([of_x.transpose()?, of_weight.map(|of_weight| of_weight.squeeze(2)).transpose()?])
}

/// Computes the gradients of candle's `conv_transpose2d` of `x`, `[n, in, height, width]`, and a weight
/// `[in, out, …, …]`.
pub fn of_conv_transpose2d(x: &Tensor, weight: &Tensor, sizes: Sizes, up: &Tensor) -> Result<Both> {
    if let Some(zeros) = of_nothing(x, weight, up)? {
        return Ok(zeros);
    }
    if computed_in(x.dtype()) != x.dtype() {
        return in_f32(x, weight, up, |x, weight, up| of_conv_transpose2d(x, weight, sizes, up));
    }
    let [padding, stride, dilation] = sizes;
    // The gradient of the complete result: the cropped part has none, and the padding at its end depends on nothing.
    let config = Conv2dConfig { stride, dilation, ..Default::default() };
    let [height, width] = extent(x, weight, &config)?;
    let up = up.pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
    let up = up.narrow(2, 0, height)?.narrow(3, 0, width)?.contiguous()?;
    if let Some([of_x, of_weight, _]) = super::transposed::gradients(x, weight, &up, &config)? {
        return Ok([of_x, of_weight]);
    }
    let of_x = || up.conv2d(&weight.detach(), 0, stride, dilation, 1);
    let of_weight = || of_kernel(&up, &x.detach(), stride, dilation);
    Ok([x.track_op().then(of_x).transpose()?, weight.track_op().then(of_weight).transpose()?])
}

/// Computes the gradients of candle's `conv_transpose1d` of `x`, `[n, in, length]`, and a weight `[in, out, width]`.
pub fn of_conv_transpose1d(x: &Tensor, weight: &Tensor, sizes: Sizes, up: &Tensor) -> Result<Both> {
    let [padding, stride, dilation] = sizes;
    let up = padded("conv_transpose1d", up, 2, [padding; 2])?.unsqueeze(2)?;
    let sizes = [0, stride, dilation];
    let of_both = of_conv_transpose2d(&x.unsqueeze(2)?, &weight.unsqueeze(2)?, sizes, &up)?;
    let [of_x, of_weight] = of_both.map(|gradient| gradient.map(|gradient| gradient.squeeze(2)).transpose());
    Ok([of_x?, of_weight?])
}

/// Returns the height and width of the image that a kernel covers at all positions of `output`.
fn extent(output: &Tensor, weight: &Tensor, config: &Conv2dConfig) -> Result<[usize; 2]> {
    let (_, _, height, width) = output.dims4()?;
    let (_, _, k_height, k_width) = weight.dims4()?;
    match (covered(height, k_height, config), covered(width, k_width, config)) {
        (Some(height), Some(width)) => Ok([height, width]),
        _ => bail!("the gradient of a convolution: a kernel {:?} covers no image", weight.dims()),
    }
}

/// Returns the gradient, `[out, in, …, …]`, of a kernel that covers `image` completely and computes `output`.
fn of_kernel(image: &Tensor, output: &Tensor, stride: usize, dilation: usize) -> Result<Tensor> {
    let (image, output) = (image.transpose(0, 1)?.contiguous()?, output.transpose(0, 1)?.contiguous()?);
    image.conv2d(&output, 0, dilation, stride, 1)?.transpose(0, 1)?.contiguous()
}

/// Returns zeros if one of the tensors has no elements.
fn of_nothing(x: &Tensor, weight: &Tensor, up: &Tensor) -> Result<Option<Both>> {
    if [x, weight, up].iter().all(|tensor| tensor.elem_count() > 0) {
        return Ok(None);
    }
    Ok(Some([Some(x.zeros_like()?), Some(weight.zeros_like()?)]))
}

/// Computes gradients of half precision in f32.
fn in_f32(
    x: &Tensor,
    weight: &Tensor,
    up: &Tensor,
    gradients: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Both>,
) -> Result<Both> {
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32);
    let [of_x, of_weight] = gradients(&wide(x)?, &wide(weight)?, &wide(up)?)?;
    let narrow = |gradient: Option<Tensor>| gradient.map(|gradient| gradient.to_dtype(x.dtype())).transpose();
    Ok([narrow(of_x)?, narrow(of_weight)?])
}
