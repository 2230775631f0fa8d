//! The gradients of candle's convolutions with one group. In some cases, candle's own are missing or wrong.

use super::patches::covered;
use super::{Fused, Operation, Patches, padded};
use crate::operation;
use candle_core::{DType, Result, Tensor, bail};
use candle_nn::Conv2dConfig;
use distribute_base::internal::accumulation_dtype;

/// The gradients of the input and the weight. `None` means that the gradient was written into a bucket or is not
/// needed.
type GradientPair = [Option<Tensor>; 2];

/// The padding, the stride and the dilation, in this order.
type Sizes = [usize; 3];

/// Computes the gradients of candle's `conv2d` from the gradient `up` of its result. `sizes` contains the padding, the
/// stride and the dilation. `x` has shape `[n, in, height, width]`, and the weight has shape `[out, in, …, …]`.
pub fn conv2d_gradients(x: &Tensor, weight: &Tensor, sizes: Sizes, up: &Tensor) -> Result<GradientPair> {
    if let Some(zeros) = empty_gradient(x, weight, up)? {
        return Ok(zeros);
    }
    if accumulation_dtype(x.dtype()) != x.dtype() {
        return in_f32(x, weight, up, |x, weight, up| conv2d_gradients(x, weight, sizes, up));
    }
    let [padding, stride, dilation] = sizes;
    let config = Conv2dConfig { padding, stride, dilation, groups: 1, cudnn_fwd_algo: None };
    let patches = Patches::new(x.dims(), weight.dims(), &config);
    if let Some(patches) = patches.filter(|_| operation::is_supported(x, weight, None)) {
        let (x, weight, up) = (x.contiguous()?, weight.contiguous()?, up.contiguous()?);
        let fused = Fused { patches };
        let [input_gradient, weight_gradient, _] = match x.dtype() {
            DType::F32 => fused.backward::<f32>(&x, &weight, None, &up, &up)?,
            _ => fused.backward::<f64>(&x, &weight, None, &up, &up)?,
        };
        return Ok([input_gradient, weight_gradient]);
    }
    // Only the part of the padded image that the kernel covers: for this part, candle's operations are the gradients.
    let [height, width] = extent(up, weight, &config)?;
    let input_gradient = || {
        let around = up.conv_transpose2d(&weight.detach(), 0, 0, stride, dilation)?;
        let (rows, columns) = (x.dim(2)? + 2 * padding - height, x.dim(3)? + 2 * padding - width);
        let around = around.pad_with_zeros(2, 0, rows)?.pad_with_zeros(3, 0, columns)?;
        around.narrow(2, padding, x.dim(2)?)?.narrow(3, padding, x.dim(3)?)?.contiguous()
    };
    let weight_gradient = || {
        let around = x.detach().pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
        kernel_gradient(&around.narrow(2, 0, height)?.narrow(3, 0, width)?, up, stride, dilation)
    };
    Ok([x.track_op().then(input_gradient).transpose()?, weight.track_op().then(weight_gradient).transpose()?])
}

/// Computes the gradients of candle's `conv1d` from the gradient `up` of its result. `sizes` contains the padding, the
/// stride and the dilation. `x` has shape `[n, in, length]`, and the weight has shape `[out, in, width]`.
pub fn conv1d_gradients(x: &Tensor, weight: &Tensor, sizes: Sizes, up: &Tensor) -> Result<GradientPair> {
    let [padding, stride, dilation] = sizes;
    // The single row gets no padding above and below.
    let rows = padded("conv1d", x, 2, [padding; 2])?.unsqueeze(2)?;
    let sizes = [0, stride, dilation];
    let [input_gradient, weight_gradient] =
        conv2d_gradients(&rows, &weight.unsqueeze(2)?, sizes, &up.unsqueeze(2)?)?;
    let input_gradient = input_gradient
        .map(|input_gradient| input_gradient.squeeze(2)?.narrow(2, padding, x.dim(2)?)?.contiguous());
    Ok([
        input_gradient.transpose()?,
        weight_gradient.map(|weight_gradient| weight_gradient.squeeze(2)).transpose()?,
    ])
}

/// Computes the gradients of candle's `conv_transpose2d` from the gradient `up` of its result. `sizes` contains the
/// padding, the stride and the dilation. `x` has shape `[n, in, height, width]`, and the weight has shape
/// `[in, out, …, …]`.
pub fn conv_transpose2d_gradients(
    x: &Tensor,
    weight: &Tensor,
    sizes: Sizes,
    up: &Tensor,
) -> Result<GradientPair> {
    if let Some(zeros) = empty_gradient(x, weight, up)? {
        return Ok(zeros);
    }
    if accumulation_dtype(x.dtype()) != x.dtype() {
        return in_f32(x, weight, up, |x, weight, up| conv_transpose2d_gradients(x, weight, sizes, up));
    }
    let [padding, stride, dilation] = sizes;
    // The gradient of the complete result: the cropped part has none, and the padding at its end depends on nothing.
    let config = Conv2dConfig { stride, dilation, ..Default::default() };
    let [height, width] = extent(x, weight, &config)?;
    let up = up.pad_with_zeros(2, padding, padding)?.pad_with_zeros(3, padding, padding)?;
    let up = up.narrow(2, 0, height)?.narrow(3, 0, width)?.contiguous()?;
    if let Some([input_gradient, weight_gradient, _]) = super::transposed::gradients(x, weight, &up, &config)?
    {
        return Ok([input_gradient, weight_gradient]);
    }
    let input_gradient = || up.conv2d(&weight.detach(), 0, stride, dilation, 1);
    let weight_gradient = || kernel_gradient(&up, &x.detach(), stride, dilation);
    Ok([x.track_op().then(input_gradient).transpose()?, weight.track_op().then(weight_gradient).transpose()?])
}

/// Computes the gradients of candle's `conv_transpose1d` from the gradient `up` of its result. `sizes` contains the
/// padding, the stride and the dilation. `x` has shape `[n, in, length]`, and the weight has shape `[in, out, width]`.
pub fn conv_transpose1d_gradients(
    x: &Tensor,
    weight: &Tensor,
    sizes: Sizes,
    up: &Tensor,
) -> Result<GradientPair> {
    let [padding, stride, dilation] = sizes;
    let up = padded("conv_transpose1d", up, 2, [padding; 2])?.unsqueeze(2)?;
    let sizes = [0, stride, dilation];
    let of_both = conv_transpose2d_gradients(&x.unsqueeze(2)?, &weight.unsqueeze(2)?, sizes, &up)?;
    let [input_gradient, weight_gradient] =
        of_both.map(|gradient| gradient.map(|gradient| gradient.squeeze(2)).transpose());
    Ok([input_gradient?, weight_gradient?])
}

/// Returns the height and width of the image area that the kernel covers at all positions of `output`. Returns an error
/// if the kernel or `output` is empty, or if the size overflows.
fn extent(output: &Tensor, weight: &Tensor, config: &Conv2dConfig) -> Result<[usize; 2]> {
    let (_, _, height, width) = output.dims4()?;
    let (_, _, k_height, k_width) = weight.dims4()?;
    match (covered(height, k_height, config), covered(width, k_width, config)) {
        (Some(height), Some(width)) => Ok([height, width]),
        _ => bail!("the gradient of a convolution: a kernel {:?} covers no image", weight.dims()),
    }
}

/// Returns the gradient of a kernel, of shape `[out, in, …, …]`, from the image that the kernel covers completely and
/// the gradient of the result, `output`. For a transposed convolution, `image` is the gradient of the result and
/// `output` is the input.
fn kernel_gradient(image: &Tensor, output: &Tensor, stride: usize, dilation: usize) -> Result<Tensor> {
    let (image, output) = (image.transpose(0, 1)?.contiguous()?, output.transpose(0, 1)?.contiguous()?);
    image.conv2d(&output, 0, dilation, stride, 1)?.transpose(0, 1)?.contiguous()
}

/// Returns zeros as gradients if one of the tensors is empty; otherwise returns `None`.
fn empty_gradient(x: &Tensor, weight: &Tensor, up: &Tensor) -> Result<Option<GradientPair>> {
    if [x, weight, up].iter().all(|tensor| tensor.elem_count() > 0) {
        return Ok(None);
    }
    Ok(Some([Some(x.zeros_like()?), Some(weight.zeros_like()?)]))
}

/// Computes the gradients in f32, and converts them to the dtype of `x`, which is in half precision.
fn in_f32(
    x: &Tensor,
    weight: &Tensor,
    up: &Tensor,
    gradients: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<GradientPair>,
) -> Result<GradientPair> {
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32);
    let [input_gradient, weight_gradient] = gradients(&wide(x)?, &wide(weight)?, &wide(up)?)?;
    let narrow = |gradient: Option<Tensor>| gradient.map(|gradient| gradient.to_dtype(x.dtype())).transpose();
    Ok([narrow(input_gradient)?, narrow(weight_gradient)?])
}
