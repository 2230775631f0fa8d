//! Convolutions of images, computed as one matrix product per image, and their gradients.

use super::autocast;
use super::gemm::product;
use super::operation::{self, Operand, Operation};
use candle_core::{Module, Result, Shape, Tensor, bail};
use candle_nn::{Conv2dConfig, VarBuilder};
use distribute_base::internal::{Number, gradients, with_elements};
use distribute_tensor::without_elements;
use patches::Patches;

mod backward;
mod patches;
mod transposed;

pub use backward::{
    conv_transpose1d_gradients, conv_transpose2d_gradients, conv1d_gradients, conv2d_gradients,
};
pub(super) use patches::covered;
pub(super) use transposed::transposed;

/// A convolution of images: candle_nn's `Conv2d`, with the bias added in the same operation.
///
/// `x` has shape `[n, in, height, width]`, and the result has shape `[n, out, …, …]`. The weight has shape `[out, in /
/// groups, …, …]`, and the bias `[out]`. For f32 and f64 on the CPU, this layer is faster than candle_nn's, and its
/// backward pass writes the gradients of weight and bias directly into the memory that `minimize` reduces. For other
/// dtypes and devices it uses candle's operation.
#[doc(alias = "tf.keras.layers.Conv2D")]
#[doc(alias = "tf.nn.conv2d")]
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    config: Conv2dConfig,
}

/// Creates a layer with a bias. Its variables `weight` and `bias` are initialized like candle_nn's.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: VarBuilder,
) -> Result<Conv2d> {
    candle_nn::conv2d(in_channels, out_channels, kernel_size, config, vb).map(Conv2d::from)
}

/// Creates a layer without a bias. Its variable `weight` is initialized like candle_nn's.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn conv2d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: VarBuilder,
) -> Result<Conv2d> {
    candle_nn::conv2d_no_bias(in_channels, out_channels, kernel_size, config, vb).map(Conv2d::from)
}

impl From<candle_nn::Conv2d> for Conv2d {
    fn from(layer: candle_nn::Conv2d) -> Self {
        Self::new(layer.weight().clone(), layer.bias().cloned(), *layer.config())
    }
}

impl Conv2d {
    /// Creates a layer from a weight of shape `[out, in / groups, height, width]` and a bias of shape `[out]`.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv2dConfig) -> Self {
        Self { weight, bias, config }
    }

    /// Returns the weight, of shape `[out, in / groups, height, width]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the bias, of shape `[out]`, or `None` if the layer has none.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Returns the configuration: stride, padding, dilation and groups.
    pub fn config(&self) -> &Conv2dConfig {
        &self.config
    }

    /// Returns the sizes for the fused operation. Returns `None` if the fused operation does not support `x`; candle's
    /// operation must then compute the result or return the error.
    fn patches(&self, x: &Tensor) -> Option<Patches> {
        let bias = self.bias.as_ref();
        let fits = bias.is_none_or(|bias| Some(bias.dims()) == self.weight.dims().get(..1))
            && operation::is_supported(x, &self.weight, bias);
        let patches = fits.then(|| Patches::new(x.dims(), self.weight.dims(), &self.config)).flatten();
        patches.filter(|patches| patches.require_size().is_ok())
    }

    /// Applies candle's operation.
    ///
    /// If the kernel does not reach the last rows or columns of the image, candle's operation computes a gradient of
    /// the wrong shape. These rows and columns are therefore cropped first. For a batch without images, the result is
    /// created without candle's operation.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let config = self.config;
        let stock = |config| candle_nn::Conv2d::new(self.weight.clone(), self.bias.clone(), config);
        let (&[_, _, height, width], &[_, _, k_height, k_width]) = (x.dims(), self.weight.dims()) else {
            return stock(config).forward(x); // candle reports the error.
        };
        let used = |input, kernel| covered(patches::positions(input, kernel, &config)?, kernel, &config);
        let Some((rows, columns)) = used(height, k_height).zip(used(width, k_width)) else {
            return stock(config).forward(x);
        };
        let positions = |input, kernel| patches::positions(input, kernel, &config);
        if let (0, Some(down), Some(across)) =
            (x.dim(0)?, positions(height, k_height), positions(width, k_width))
        {
            return without_elements(&[0, self.weight.dim(0)?, down, across], x.dtype(), x.device());
        }
        let padded = |input: usize| input + 2 * config.padding;
        if (rows, columns) == (padded(height), padded(width)) {
            return stock(config).forward(x);
        }
        let around = x.pad_with_zeros(2, config.padding, config.padding)?;
        let around = around.pad_with_zeros(3, config.padding, config.padding)?;
        let inner = around.narrow(2, 0, rows)?.narrow(3, 0, columns)?.contiguous()?;
        stock(Conv2dConfig { padding: 0, ..config }).forward(&inner)
    }

    /// Returns an error if the kernel does not fit into the image, or if the result or the patches would have more
    /// elements than memory can address. candle would panic in these cases.
    fn require_fit(&self, x: &Tensor) -> Result<()> {
        if let Some(patches) = Patches::new(x.dims(), self.weight.dims(), &self.config) {
            patches.require_size()?;
        }
        let (&[.., height, width], &[.., k_height, k_width]) = (x.dims(), self.weight.dims()) else {
            return Ok(()); // candle reports the error.
        };
        let fits = |(input, kernel)| patches::positions(input, kernel, &self.config).is_some();
        if [(height, k_height), (width, k_width)].into_iter().all(fits) {
            Ok(())
        } else {
            bail!(
                "conv2d: a kernel {:?} does not fit images {:?} with {:?}",
                self.weight.dims(),
                x.dims(),
                self.config
            )
        }
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some(dtype) = autocast::compute_dtype(x, &self.weight) else { return self.compute(x) };
        let x = x.to_dtype(dtype)?;
        if self.patches(&x).is_some() {
            return self.compute(&x);
        }
        let inner = autocast::convolution_dtype(&x, dtype);
        let (weight, bias) = autocast::parameters(&self.weight, self.bias.as_ref(), inner)?;
        Self { weight, bias, config: self.config }.compute(&x.to_dtype(inner)?)?.to_dtype(dtype)
    }
}

impl Conv2d {
    /// Computes the output. The fused operation must support the input, or the input must have the dtype of the weight.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        match self.patches(x) {
            Some(patches) => operation::apply(Fused { patches }, x, &self.weight, self.bias.as_ref()),
            None => {
                self.require_fit(x)?;
                self.composed(x)
            }
        }
    }
}

/// The fused operation. The weight of each group is a matrix with one row per output channel.
struct Fused {
    patches: Patches,
}

impl Fused {
    /// Computes the gradient of the weight. Adds it to `gradient` if `add` is `true`, otherwise overwrites `gradient`.
    fn weight_gradient<T: Number>(&self, x: &[T], upstream: &[T], gradient: &mut [T], add: bool) {
        let p = self.patches;
        let mut buffer = Vec::new();
        let pairs = x.chunks_exact(p.group_input()).zip(upstream.chunks_exact(p.group_output()));
        for (number, (x, upstream)) in pairs.enumerate() {
            let (image, group) = (number / p.groups, number % p.groups);
            let gradient = &mut gradient[group * p.group_weight()..][..p.group_weight()];
            let patches = p.gather(x, &mut buffer);
            product(gradient, add || image > 0, p.output(upstream), patches.t());
        }
    }

    fn input_gradient<T: Number>(&self, weight: &[T], upstream: &[T]) -> Vec<T> {
        let p = self.patches;
        let mut gradient = vec![T::of(0.); p.images * p.groups * p.group_input()];
        let mut buffer = vec![T::of(0.); p.patch() * p.positions()];
        let pairs = gradient.chunks_exact_mut(p.group_input()).zip(upstream.chunks_exact(p.group_output()));
        for ((gradient, upstream), weight) in pairs.zip(weight.chunks_exact(p.group_weight()).cycle()) {
            if p.is_whole() {
                product(gradient, false, p.weight(weight).t(), p.output(upstream))
            } else {
                product(&mut buffer, false, p.weight(weight).t(), p.output(upstream));
                p.scatter(&buffer, gradient);
            }
        }
        gradient
    }
}

/// Returns the gradients of the input, the weight and the bias. A gradient is `None` if it is not needed or was written
/// into a bucket.
///
/// `weight_gradient` gets the elements of `x`, and writes the gradient of the weight to a slice, or adds it if its last
/// argument is `true`. `input_gradient` computes the gradient of the input from the elements of the weight. The
/// gradient of the bias is the sum of `upstream` over each channel's planes, which have `plane` elements.
fn gradients<T: Number>(
    [x, weight]: [&Tensor; 2],
    bias: Option<&Tensor>,
    (upstream, plane): (&[T], usize),
    weight_gradient: impl FnOnce(&[T], &mut [T], bool),
    input_gradient: impl FnOnce(&[T]) -> Result<Vec<T>>,
) -> Result<[Option<Tensor>; 3]> {
    let weight_gradient = with_elements(x, |x| {
        gradients::gradient(weight, |place: &mut [T], add| weight_gradient(x, place, add))
    })??;
    let bias_gradient = bias.map(|bias| {
        gradients::gradient(bias, |sums: &mut [T], add| {
            if !add {
                sums.fill(T::of(0.));
            }
            for image in upstream.chunks_exact(sums.len() * plane) {
                for (sum, plane) in sums.iter_mut().zip(image.chunks_exact(plane)) {
                    *sum += super::lanes::sum(plane, plane, |up, _| up);
                }
            }
        })
    });
    let input_gradient = if x.track_op() {
        Some(Tensor::from_vec(with_elements(weight, input_gradient)??, x.shape(), x.device())?)
    } else {
        None
    };
    Ok([input_gradient, weight_gradient, bias_gradient.transpose()?.flatten()])
}

/// Pads an axis with zeros at both ends. The tensor may be empty. Returns an error if the result has more elements
/// than memory can address.
pub(super) fn padded(name: &str, x: &Tensor, axis: usize, [left, right]: [usize; 2]) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    dims[axis] = dims[axis].saturating_add(left).saturating_add(right);
    operation::require_size(name, &dims)?;
    if x.elem_count() > 0 || dims == x.dims() {
        return x.pad_with_zeros(axis, left, right);
    }
    without_elements(&dims, x.dtype(), x.device())
}

impl Operation for Fused {
    const NAME: &'static str = "conv2d";

    fn forward<T: Number>(
        &self,
        x: Operand<'_, T>,
        weight: Operand<'_, T>,
        bias: Option<&[T]>,
    ) -> Result<(Vec<T>, Shape)> {
        let p = self.patches;
        let mut y = vec![T::of(0.); p.images * p.outputs * p.positions()];
        if let Some(bias) = bias {
            for (plane, bias) in y.chunks_exact_mut(p.positions()).zip(bias.iter().cycle()) {
                plane.fill(*bias);
            }
        }
        let mut buffer = Vec::new();
        let pairs = x.elements.chunks_exact(p.group_input()).zip(y.chunks_exact_mut(p.group_output()));
        for ((x, y), weight) in pairs.zip(weight.elements.chunks_exact(p.group_weight()).cycle()) {
            let patches = p.gather(x, &mut buffer);
            product(y, bias.is_some(), p.weight(weight), patches);
        }
        Ok((y, Shape::from(&p.output_dims())))
    }

    fn backward<T: Number>(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        with_elements(upstream, |up: &[T]| {
            let weight_gradient = |x: &[T], place: &mut [T], add| self.weight_gradient(x, up, place, add);
            let input_gradient = |weight: &[T]| Ok(self.input_gradient(weight, up));
            gradients([x, weight], bias, (up, self.patches.positions()), weight_gradient, input_gradient)
        })?
    }
}
