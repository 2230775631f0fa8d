//! Pooling with the same signatures and results as in candle, but with correct gradients for any kernel and stride.

use super::operation::require_size;
use super::windows::{self, Axes, Axis};
use candle_core::{D, Result, Tensor, ToUsize2, bail};

/// Returns the largest element of each window of size `sz` in images of shape `[n, channels, height, width]`, like
/// candle's `max_pool2d`.
///
/// Windows are adjacent. The gradient of a window goes to the first of its largest elements, as in TensorFlow and
/// PyTorch. candle 0.11's own backward pass divides the gradient by the size of the window, and misplaces it if the
/// image size is not a multiple of the window size.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use distribute::nn::max_pool2d;
///
/// let x = Var::new(&[[[[1f32, 2.], [3., 4.]]]], &Device::Cpu)?;
/// let gradients = max_pool2d(&x, 2)?.sum_all()?.backward()?;
/// let of_x = gradients.get(&x).unwrap().flatten_all()?.to_vec1::<f32>()?;
/// assert_eq!(of_x, [0., 0., 0., 1.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Returns an error in these cases:
/// - The input does not have four axes.
/// - The window has size 0 or is larger than the image.
#[doc(alias = "tf.nn.max_pool2d")]
#[doc(alias = "tf.keras.layers.MaxPooling2D")]
pub fn max_pool2d<T: ToUsize2>(xs: &Tensor, sz: T) -> Result<Tensor> {
    let size = sz.to_usize2();
    max_pool2d_with_stride(xs, size, size)
}

/// Acts like [`max_pool2d`], with windows that are `stride` apart.
///
/// # Errors
///
/// Returns the errors of [`max_pool2d`], and an error if the stride is 0.
pub fn max_pool2d_with_stride<T: ToUsize2>(xs: &Tensor, kernel_size: T, stride: T) -> Result<Tensor> {
    let (kernel, stride) = (kernel_size.to_usize2(), stride.to_usize2());
    let axes = fixed("max_pool2d", xs, kernel, stride)?;
    largest("max_pool2d", xs, axes, |xs, _| xs.max_pool2d_with_stride(kernel, stride))
}

/// Returns the mean of each window of size `sz` in images of shape `[n, channels, height, width]`, like candle's
/// `avg_pool2d`.
///
/// Windows are adjacent.
///
/// # Errors
/// Returns the errors of [`max_pool2d`].
#[doc(alias = "tf.nn.avg_pool2d")]
#[doc(alias = "tf.keras.layers.AveragePooling2D")]
pub fn avg_pool2d<T: ToUsize2>(xs: &Tensor, sz: T) -> Result<Tensor> {
    let size = sz.to_usize2();
    avg_pool2d_with_stride(xs, size, size)
}

/// Acts like [`avg_pool2d`], with windows that are `stride` apart.
///
/// # Errors
///
/// Returns the errors of [`max_pool2d_with_stride`].
pub fn avg_pool2d_with_stride<T: ToUsize2>(xs: &Tensor, kernel_size: T, stride: T) -> Result<Tensor> {
    let (kernel, stride) = (kernel_size.to_usize2(), stride.to_usize2());
    let axes = fixed("avg_pool2d", xs, kernel, stride)?;
    mean("avg_pool2d", xs, axes, |xs, _| xs.avg_pool2d_with_stride(kernel, stride))
}

/// Returns the largest element of each window of size `kernel_size` in sequences of shape `[n, channels, length]`.
/// Windows are `stride` apart.
///
/// # Errors
/// Returns an error in these cases:
/// - The input does not have three axes.
/// - The window has size 0 or is longer than the input.
/// - The stride is 0.
#[doc(alias = "tf.nn.max_pool1d")]
#[doc(alias = "tf.keras.layers.MaxPooling1D")]
pub fn max_pool1d(xs: &Tensor, kernel_size: usize, stride: usize) -> Result<Tensor> {
    xs.dims3()?;
    max_pool2d_with_stride(&xs.unsqueeze(2)?, (1, kernel_size), (1, stride))?.squeeze(2)
}

/// Returns the mean of each window of size `kernel_size` in sequences of shape `[n, channels, length]`. Windows are
/// `stride` apart.
///
/// # Errors
/// Returns the errors of [`max_pool1d`].
#[doc(alias = "tf.nn.avg_pool1d")]
#[doc(alias = "tf.keras.layers.AveragePooling1D")]
pub fn avg_pool1d(xs: &Tensor, kernel_size: usize, stride: usize) -> Result<Tensor> {
    xs.dims3()?;
    avg_pool2d_with_stride(&xs.unsqueeze(2)?, (1, kernel_size), (1, stride))?.squeeze(2)
}

/// Divides images of shape `[n, channels, height, width]` into `output_size` windows, as in PyTorch, and returns the
/// largest element of each.
///
/// Along an axis of length l, window i of n is the range from ⌊i l / n⌋ to ⌈(i + 1) l / n⌉.
///
/// # Errors
/// Returns an error in these cases:
/// - The input does not have four axes.
/// - The height or the width of the images or of the output is 0.
/// - The output would have more elements than memory can address.
pub fn adaptive_max_pool2d<T: ToUsize2>(xs: &Tensor, output_size: T) -> Result<Tensor> {
    let axes = adaptive("adaptive_max_pool2d", xs, output_size.to_usize2())?;
    largest("adaptive_max_pool2d", xs, axes, windows::largest)
}

/// Returns the mean of each window that [`adaptive_max_pool2d`] uses.
///
/// # Errors
/// Returns the errors of [`adaptive_max_pool2d`].
pub fn adaptive_avg_pool2d<T: ToUsize2>(xs: &Tensor, output_size: T) -> Result<Tensor> {
    let axes = adaptive("adaptive_avg_pool2d", xs, output_size.to_usize2())?;
    mean("adaptive_avg_pool2d", xs, axes, windows::combined)
}

/// Returns the largest element of each channel of images of shape `[n, channels, height, width]`. The result has shape
/// `[n, channels]`.
///
/// # Errors
/// Returns the errors of [`adaptive_max_pool2d`].
#[doc(alias = "tf.keras.layers.GlobalMaxPooling2D")]
pub fn global_max_pool2d(xs: &Tensor) -> Result<Tensor> {
    adaptive_max_pool2d(xs, 1)?.squeeze(D::Minus1)?.squeeze(D::Minus1)
}

/// Returns the mean of each channel of images of shape `[n, channels, height, width]`. The result has shape `[n,
/// channels]`.
///
/// # Errors
/// Returns the errors of [`adaptive_max_pool2d`].
#[doc(alias = "tf.keras.layers.GlobalAveragePooling2D")]
pub fn global_avg_pool2d(xs: &Tensor) -> Result<Tensor> {
    adaptive_avg_pool2d(xs, 1)?.squeeze(D::Minus1)?.squeeze(D::Minus1)
}

/// Returns the windows for a kernel and a stride, or an error if they do not fit the images.
fn fixed(name: &str, xs: &Tensor, kernel: (usize, usize), stride: (usize, usize)) -> Result<Axes> {
    let (_, _, height, width) = xs.dims4()?;
    let fits = |size: usize, kernel: usize, stride: usize| kernel > 0 && stride > 0 && kernel <= size;
    if !fits(height, kernel.0, stride.0) || !fits(width, kernel.1, stride.1) {
        bail!(
            "{name}: a window of {kernel:?} with a stride of {stride:?} does not fit images of {height} x {width}"
        )
    }
    Ok([Axis::pooled(height, kernel.0, stride.0), Axis::pooled(width, kernel.1, stride.1)])
}

fn adaptive(name: &str, xs: &Tensor, output: (usize, usize)) -> Result<Axes> {
    let (images, channels, height, width) = xs.dims4()?;
    if [height, width, output.0, output.1].contains(&0) {
        bail!(
            "{name}: images of {height} x {width} cannot be pooled to {output:?}: each has to be at least 1"
        )
    }
    require_size(name, &[images, channels, output.0, output.1])?;
    Ok([Axis::adaptive(height, output.0), Axis::adaptive(width, output.1)])
}

/// Computes the largest elements of windows with `forward`, and adds their gradient to the graph.
fn largest(
    name: &'static str,
    xs: &Tensor,
    axes: Axes,
    forward: impl FnOnce(&Tensor, &Axes) -> Result<Tensor>,
) -> Result<Tensor> {
    windows::applied(name, xs, axes, forward, windows::largest_gradient)
}

/// Computes the means of windows with `forward`, and adds their gradient to the graph.
fn mean(
    name: &'static str,
    xs: &Tensor,
    axes: Axes,
    forward: impl FnOnce(&Tensor, &Axes) -> Result<Tensor>,
) -> Result<Tensor> {
    windows::applied(name, xs, axes, forward, |_, up, axes| windows::combined_gradient(up, axes))
}

/// Computes the gradient of candle's `max_pool2d` with respect to `x`, from the gradient `up` of its result.
pub fn max_pool2d_gradient(
    x: &Tensor,
    kernel: (usize, usize),
    stride: (usize, usize),
    up: &Tensor,
) -> Result<Tensor> {
    windows::largest_gradient(x, up, &fixed("max_pool2d", x, kernel, stride)?)
}

/// Computes the gradient of candle's `avg_pool2d` with respect to `x`, from the gradient `up` of its result.
pub fn avg_pool2d_gradient(
    x: &Tensor,
    kernel: (usize, usize),
    stride: (usize, usize),
    up: &Tensor,
) -> Result<Tensor> {
    windows::combined_gradient(up, &fixed("avg_pool2d", x, kernel, stride)?)
}
