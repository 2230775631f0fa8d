//! Convolution of images as one matrix product for each image, and its gradients.

use super::gemm::product;
use super::operation::{self, Operand, Operation};
use candle_core::{Module, Result, Shape, Tensor, bail};
use candle_nn::{Conv2dConfig, VarBuilder};
use distribute_base::internal::{Number, deposit, with_elements};
use distribute_tensor::without_elements;
use patches::Patches;

mod gradients;
mod patches;
mod transposed;

pub use gradients::{of_conv_transpose1d, of_conv_transpose2d, of_conv1d, of_conv2d};
pub(super) use patches::covered;
pub(super) use transposed::transposed;

/// A convolution of images: candle_nn's `Conv2d`, with the bias in the same operation.
///
/// Backward writes the gradients of weight and bias directly into the memory that `minimize` reduces.
///
/// `x` has shape `[n, in, height, width]` and the result `[n, out, …, …]`; the weight is
/// `[out, in / groups, …, …]`, the bias `[out]`. For f32 and f64 on the CPU this layer is faster than
/// candle_nn's; other dtypes and devices use candle's operation.
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
    /// Creates a layer from a weight `[out, in / groups, height, width]` and a bias `[out]`.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv2dConfig) -> Self {
        Self { weight, bias, config }
    }

    /// Returns the weight, `[out, in / groups, height, width]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the bias, `[out]`, if the layer has one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Returns stride, padding, dilation and groups.
    pub fn config(&self) -> &Conv2dConfig {
        &self.config
    }

    /// Returns the sizes for the fused operation, or `None` if candle's operation has to compute `x` or to refuse it.
    fn patches(&self, x: &Tensor) -> Option<Patches> {
        let bias = self.bias.as_ref();
        let fits = bias.is_none_or(|bias| Some(bias.dims()) == self.weight.dims().get(..1))
            && operation::takes(x, &self.weight, bias);
        let patches = fits.then(|| Patches::new(x.dims(), self.weight.dims(), &self.config)).flatten();
        patches.filter(|patches| patches.require_size().is_ok())
    }

    /// Applies candle's operation.
    ///
    /// Its gradient has a wrong shape if the kernel does not reach the last rows or columns of the image, so
    /// these are cropped first.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let config = self.config;
        let stock = |config| candle_nn::Conv2d::new(self.weight.clone(), self.bias.clone(), config);
        let (&[_, _, height, width], &[_, _, k_height, k_width]) = (x.dims(), self.weight.dims()) else {
            return stock(config).forward(x); // candle reports the error.
        };
        let used = |input, kernel| covered(patches::places(input, kernel, &config)?, kernel, &config);
        let Some((rows, columns)) = used(height, k_height).zip(used(width, k_width)) else {
            return stock(config).forward(x);
        };
        let places = |input, kernel| patches::places(input, kernel, &config);
        if let (0, Some(down), Some(across)) = (x.dim(0)?, places(height, k_height), places(width, k_width)) {
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

    /// Refuses images without a position for the kernel, or with more than can be counted, for which candle panics.
    fn require_places(&self, x: &Tensor) -> Result<()> {
        if let Some(patches) = Patches::new(x.dims(), self.weight.dims(), &self.config) {
            patches.require_size()?;
        }
        let (&[.., height, width], &[.., k_height, k_width]) = (x.dims(), self.weight.dims()) else {
            return Ok(()); // candle reports the error.
        };
        let fits = |(input, kernel)| patches::places(input, kernel, &self.config).is_some();
        if [(height, k_height), (width, k_width)].into_iter().all(fits) {
            Ok(())
        } else {
            bail!(
                "conv2d: a kernel {:?} has no place in images {:?} with {:?}",
                self.weight.dims(),
                x.dims(),
                self.config
            )
        }
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self.patches(x) {
            Some(patches) => operation::apply(Fused { patches }, x, &self.weight, self.bias.as_ref()),
            None => {
                self.require_places(x)?;
                self.composed(x)
            }
        }
    }
}

/// The fused operation. The weight of each group is a matrix with a row for each output channel.
struct Fused {
    patches: Patches,
}

impl Fused {
    /// Adds the gradient of the weight to `gradient`.
    fn of_weight<T: Number>(&self, x: &[T], upstream: &[T], gradient: &mut [T], add: bool) {
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

    fn of_input<T: Number>(&self, weight: &[T], upstream: &[T]) -> Vec<T> {
        let p = self.patches;
        let mut gradient = vec![T::of(0.); p.images * p.groups * p.group_input()];
        let mut buffer = vec![T::of(0.); p.patch() * p.places()];
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

/// Returns the requested gradients of input, weight and bias.
///
/// `of_weight` writes the gradient of the weight, and `of_input` computes that of the input. The gradient of
/// the bias is the sum over each channel's planes of `upstream`, with `plane` elements each.
fn gradients<T: Number>(
    [x, weight]: [&Tensor; 2],
    bias: Option<&Tensor>,
    (upstream, plane): (&[T], usize),
    of_weight: impl FnOnce(&[T], &mut [T], bool),
    of_input: impl FnOnce(&[T]) -> Result<Vec<T>>,
) -> Result<[Option<Tensor>; 3]> {
    let of_weight =
        with_elements(x, |x| deposit::gradient(weight, |place: &mut [T], add| of_weight(x, place, add)))??;
    let of_bias = bias.map(|bias| {
        deposit::gradient(bias, |sums: &mut [T], add| {
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
    let of_input = if x.track_op() {
        Some(Tensor::from_vec(with_elements(weight, of_input)??, x.shape(), x.device())?)
    } else {
        None
    };
    Ok([of_input, of_weight, of_bias.transpose()?.flatten()])
}

/// Pads the ends of an axis with zeros, even of a tensor without elements. Refuses more elements than memory
/// has addresses.
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
        let mut y = vec![T::of(0.); p.images * p.outputs * p.places()];
        if let Some(bias) = bias {
            for (plane, bias) in y.chunks_exact_mut(p.places()).zip(bias.iter().cycle()) {
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
            let of_weight = |x: &[T], place: &mut [T], add| self.of_weight(x, up, place, add);
            let of_input = |weight: &[T]| Ok(self.of_input(weight, up));
            gradients([x, weight], bias, (up, self.patches.places()), of_weight, of_input)
        })?
    }
}
