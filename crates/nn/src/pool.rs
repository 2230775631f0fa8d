//! Pooling, with candle's signatures and values, and gradients that are right for any kernel and stride.

use super::operation::require_size;
use super::windows::{self, Axes, Axis};
use candle_core::{D, Result, Tensor, ToUsize2, bail};

/// candle's `max_pool2d`: the largest element of each window of `sz` of `[n, channels, height, width]`; windows follow one another.
///
/// Its gradient goes to the first of the largest elements of each window, as TensorFlow's and PyTorch's. That of candle 0.11's own
/// `backward` is divided by the size of the window, and in a wrong place if the image is no multiple of it.
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
/// For an input of other than four axes, and a window of size 0 or larger than the image.
#[doc(alias = "tf.nn.max_pool2d")]
#[doc(alias = "tf.keras.layers.MaxPooling2D")]
pub fn max_pool2d<T: ToUsize2>(xs: &Tensor, sz: T) -> Result<Tensor> {
    let size = sz.to_usize2();
    max_pool2d_with_stride(xs, size, size)
}

/// [`max_pool2d`] with windows that are `stride` apart.
///
/// # Errors
/// As [`max_pool2d`], and for a stride of 0.
pub fn max_pool2d_with_stride<T: ToUsize2>(xs: &Tensor, kernel_size: T, stride: T) -> Result<Tensor> {
    let (kernel, stride) = (kernel_size.to_usize2(), stride.to_usize2());
    let axes = fixed("max_pool2d", xs, kernel, stride)?;
    largest("max_pool2d", xs, axes, |xs, _| xs.max_pool2d_with_stride(kernel, stride))
}

/// candle's `avg_pool2d`: the mean of each window of `sz` of `[n, channels, height, width]`; windows follow one another.
///
/// # Errors
/// As [`max_pool2d`].
#[doc(alias = "tf.nn.avg_pool2d")]
#[doc(alias = "tf.keras.layers.AveragePooling2D")]
pub fn avg_pool2d<T: ToUsize2>(xs: &Tensor, sz: T) -> Result<Tensor> {
    let size = sz.to_usize2();
    avg_pool2d_with_stride(xs, size, size)
}

/// [`avg_pool2d`] with windows that are `stride` apart.
///
/// # Errors
/// As [`max_pool2d_with_stride`].
pub fn avg_pool2d_with_stride<T: ToUsize2>(xs: &Tensor, kernel_size: T, stride: T) -> Result<Tensor> {
    let (kernel, stride) = (kernel_size.to_usize2(), stride.to_usize2());
    let axes = fixed("avg_pool2d", xs, kernel, stride)?;
    mean("avg_pool2d", xs, axes, |xs, _| xs.avg_pool2d_with_stride(kernel, stride))
}

/// The largest element of each window of `kernel_size` of `[n, channels, length]`; windows are `stride` apart.
///
/// # Errors
/// For an input of other than three axes, a window of size 0 or longer than the input, and a stride of 0.
#[doc(alias = "tf.nn.max_pool1d")]
#[doc(alias = "tf.keras.layers.MaxPooling1D")]
pub fn max_pool1d(xs: &Tensor, kernel_size: usize, stride: usize) -> Result<Tensor> {
    xs.dims3()?;
    max_pool2d_with_stride(&xs.unsqueeze(2)?, (1, kernel_size), (1, stride))?.squeeze(2)
}

/// The mean of each window of `kernel_size` of `[n, channels, length]`; windows are `stride` apart.
///
/// # Errors
/// As [`max_pool1d`].
#[doc(alias = "tf.nn.avg_pool1d")]
#[doc(alias = "tf.keras.layers.AveragePooling1D")]
pub fn avg_pool1d(xs: &Tensor, kernel_size: usize, stride: usize) -> Result<Tensor> {
    xs.dims3()?;
    avg_pool2d_with_stride(&xs.unsqueeze(2)?, (1, kernel_size), (1, stride))?.squeeze(2)
}

/// The largest elements of `output_size` windows that cover `[n, channels, height, width]`, cut as PyTorch cuts it: window i of n, along an axis
/// of length l, is from ⌊i l / n⌋ to ⌈(i + 1) l / n⌉.
///
/// # Errors
/// For an input of other than four axes, images without elements, and an output of size 0.
pub fn adaptive_max_pool2d<T: ToUsize2>(xs: &Tensor, output_size: T) -> Result<Tensor> {
    let axes = adaptive("adaptive_max_pool2d", xs, output_size.to_usize2())?;
    largest("adaptive_max_pool2d", xs, axes, windows::largest)
}

/// The means of `output_size` windows that cover `[n, channels, height, width]`, as those of [`adaptive_max_pool2d`].
///
/// # Errors
/// As [`adaptive_max_pool2d`].
pub fn adaptive_avg_pool2d<T: ToUsize2>(xs: &Tensor, output_size: T) -> Result<Tensor> {
    let axes = adaptive("adaptive_avg_pool2d", xs, output_size.to_usize2())?;
    mean("adaptive_avg_pool2d", xs, axes, windows::combined)
}

/// The largest element of each channel of `[n, channels, height, width]`: `[n, channels]`.
///
/// # Errors
/// As [`adaptive_max_pool2d`].
#[doc(alias = "tf.keras.layers.GlobalMaxPooling2D")]
pub fn global_max_pool2d(xs: &Tensor) -> Result<Tensor> {
    adaptive_max_pool2d(xs, 1)?.squeeze(D::Minus1)?.squeeze(D::Minus1)
}

/// The mean of each channel of `[n, channels, height, width]`: `[n, channels]`.
///
/// # Errors
/// As [`adaptive_max_pool2d`].
#[doc(alias = "tf.keras.layers.GlobalAveragePooling2D")]
pub fn global_avg_pool2d(xs: &Tensor) -> Result<Tensor> {
    adaptive_avg_pool2d(xs, 1)?.squeeze(D::Minus1)?.squeeze(D::Minus1)
}

/// The windows of a kernel.
fn fixed(name: &str, xs: &Tensor, kernel: (usize, usize), stride: (usize, usize)) -> Result<Axes> {
    let (_, _, height, width) = xs.dims4()?;
    let fits = |size: usize, kernel: usize, stride: usize| kernel > 0 && stride > 0 && kernel <= size;
    if !fits(height, kernel.0, stride.0) || !fits(width, kernel.1, stride.1) {
        bail!(
            "{name}: a window of {kernel:?} with a stride of {stride:?} has no place in images of {height} x {width}"
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

/// The largest elements of windows, computed by `forward`, with their gradient.
fn largest(
    name: &'static str,
    xs: &Tensor,
    axes: Axes,
    forward: impl FnOnce(&Tensor, &Axes) -> Result<Tensor>,
) -> Result<Tensor> {
    windows::applied(name, xs, axes, forward, windows::of_largest)
}

/// The means of windows, computed by `forward`, with their gradient.
fn mean(
    name: &'static str,
    xs: &Tensor,
    axes: Axes,
    forward: impl FnOnce(&Tensor, &Axes) -> Result<Tensor>,
) -> Result<Tensor> {
    windows::applied(name, xs, axes, forward, |_, up, axes| windows::of_combined(up, axes))
}

/// The gradient of candle's `max_pool2d`.
pub fn of_max_pool2d(
    x: &Tensor,
    kernel: (usize, usize),
    stride: (usize, usize),
    up: &Tensor,
) -> Result<Tensor> {
    windows::of_largest(x, up, &fixed("max_pool2d", x, kernel, stride)?)
}

/// The gradient of candle's `avg_pool2d`.
pub fn of_avg_pool2d(
    x: &Tensor,
    kernel: (usize, usize),
    stride: (usize, usize),
    up: &Tensor,
) -> Result<Tensor> {
    windows::of_combined(up, &fixed("avg_pool2d", x, kernel, stride)?)
}
