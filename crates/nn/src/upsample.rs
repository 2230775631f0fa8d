//! Upsampling with the same signatures and results as in candle, but with correct gradients for any size.

use super::operation::require_size;
use super::windows::{self, Axes, Axis};
use candle_core::{DType, Device, Result, Tensor, bail};
use distribute_base::Error;
use distribute_core::internal::to_candle_error;

/// Resizes sequences of shape `[n, channels, length]` to length `target_size`, like candle's `upsample_nearest1d` and
/// `interpolate1d`. Each output element is the nearest input element.
///
/// candle 0.11's own backward pass drops the gradients of other uses of the input, and returns an error if the
/// target size is not a multiple of the length.
///
/// # Errors
/// Returns an error in these cases:
/// - The input does not have three axes.
/// - The input or the output has length 0.
/// - The result would have more elements than memory can address.
#[doc(alias = "interpolate1d")]
#[doc(alias = "tf.keras.layers.UpSampling1D")]
pub fn upsample_nearest1d(xs: &Tensor, target_size: usize) -> Result<Tensor> {
    xs.dims3()?;
    upsample_nearest2d(&xs.unsqueeze(2)?, 1, target_size)?.squeeze(2)
}

/// Resizes images of shape `[n, channels, height, width]` to `target_h` x `target_w`, like candle's
/// `upsample_nearest2d` and `interpolate2d`. Each output element is the nearest input element.
///
/// # Errors
/// Returns an error in these cases:
/// - The input does not have four axes.
/// - The height or the width of the images is 0 before or after resizing.
/// - The result would have more elements than memory can address.
#[doc(alias = "interpolate2d")]
#[doc(alias = "tf.keras.layers.UpSampling2D")]
#[doc(alias = "tf.image.resize")]
pub fn upsample_nearest2d(xs: &Tensor, target_h: usize, target_w: usize) -> Result<Tensor> {
    let axes = nearest("upsample_nearest2d", xs, target_h, target_w)?;
    upsampled("upsample_nearest2d", xs, axes, |xs, _| xs.upsample_nearest2d(target_h, target_w))
}

/// Resizes images of shape `[n, channels, height, width]` to `target_h` x `target_w` with bilinear interpolation,
/// like candle's `upsample_bilinear2d`.
///
/// Each output element is the mean of the four nearest elements, weighted by distance. If `align_corners` is `true`,
/// the elements at the corners keep their positions.
///
/// # Errors
/// Returns the errors of [`upsample_nearest2d`].
#[doc(alias = "tf.image.resize")]
pub fn upsample_bilinear2d(
    xs: &Tensor,
    target_h: usize,
    target_w: usize,
    align_corners: bool,
) -> Result<Tensor> {
    let axes = bilinear("upsample_bilinear2d", xs, target_h, target_w, align_corners)?;
    upsampled("upsample_bilinear2d", xs, axes, |xs, axes| match xs.device() {
        Device::Cpu => xs.upsample_bilinear2d(target_h, target_w, align_corners),
        // candle has no kernel for this on some devices.
        _ => windows::combined(xs, axes),
    })
}

fn nearest(name: &str, xs: &Tensor, target_h: usize, target_w: usize) -> Result<Axes> {
    let [height, width] = size(name, xs, target_h, target_w)?;
    Ok([Axis::nearest(height, target_h), Axis::nearest(width, target_w)])
}

fn bilinear(name: &str, xs: &Tensor, target_h: usize, target_w: usize, align_corners: bool) -> Result<Axes> {
    let [height, width] = size(name, xs, target_h, target_w)?;
    Ok([Axis::bilinear(height, target_h, align_corners), Axis::bilinear(width, target_w, align_corners)])
}

fn size(name: &str, xs: &Tensor, target_h: usize, target_w: usize) -> Result<[usize; 2]> {
    let (images, channels, height, width) = xs.dims4()?;
    if [height, width, target_h, target_w].contains(&0) {
        bail!(
            "{name}: images of {height} x {width} cannot become {target_h} x {target_w}: each has to be at least 1"
        )
    }
    require_size(name, &[images, channels, target_h, target_w])?;
    Ok([height, width])
}

fn upsampled(
    name: &'static str,
    xs: &Tensor,
    axes: Axes,
    forward: impl FnOnce(&Tensor, &Axes) -> Result<Tensor>,
) -> Result<Tensor> {
    let forward = |xs: &Tensor, axes: &Axes| forward(&xs.contiguous()?, axes);
    windows::applied(name, xs, axes, forward, |_, up, axes| windows::combined_gradient(up, axes))
}

/// Computes the gradient of candle's `upsample_nearest1d` with respect to `x`, from the gradient `up` of its result.
pub fn nearest1d_gradient(x: &Tensor, up: &Tensor) -> Result<Tensor> {
    nearest2d_gradient(&x.unsqueeze(2)?, &up.unsqueeze(2)?)?.squeeze(2)
}

/// Computes the gradient of candle's `upsample_nearest2d` with respect to `x`, from the gradient `up` of its result.
pub fn nearest2d_gradient(x: &Tensor, up: &Tensor) -> Result<Tensor> {
    let (_, _, height, width) = up.dims4()?;
    windows::combined_gradient(up, &nearest("upsample_nearest2d", x, height, width)?)
}

/// Computes the gradient of candle's `upsample_bilinear2d` with respect to `x`, from its result `y` and the gradient
/// `up` of `y`.
///
/// candle's graph does not store the scale passed to `upsample_bilinear2d_with_scale`. If `y` is the result for the
/// ratio of the sizes, that ratio is used; another scale goes unnoticed if it has the same result, as for a constant
/// `x`. Otherwise this returns an error. NaN elements are not compared.
pub fn bilinear2d_gradient(x: &Tensor, align_corners: bool, y: &Tensor, up: &Tensor) -> Result<Tensor> {
    let (_, _, height, width) = up.dims4()?;
    let by_size = x.detach().upsample_bilinear2d(height, width, align_corners)?;
    let differs = by_size.ne(y)?.mul(&y.eq(y)?)?;
    if differs.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()? > 0. {
        let reason = format!(
            "the model calls upsample_bilinear2d_with_scale on {:?} with a scale that is not a ratio of sizes, which \
             candle's graph does not record; call distribute::nn::upsample_bilinear2d(&x, {height}, {width}, {align_corners})?",
            x.dims()
        );
        return Err(to_candle_error(Error::invalid("backward", reason)));
    }
    windows::combined_gradient(up, &bilinear("upsample_bilinear2d", x, height, width, align_corners)?)
}
