//! Transposed convolutions of images and sequences.

use super::autocast;
use super::conv2d::{self, padded};
use super::operation::require_size;
use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig, VarBuilder};
use distribute_tensor::without_elements;

/// A transposed convolution of images: candle_nn's `ConvTranspose2d`, with gradients for images of any size.
///
/// For f32 and f64 on the CPU, the bias is added in the same operation.
///
/// `x` has shape `[n, in, height, width]`, and the result has shape `[n, out, …, …]`. The weight has shape `[in, out,
/// …, …]`, and the bias `[out]`.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor, Var};
/// use distribute::nn::{ConvTranspose2d, ConvTranspose2dConfig};
///
/// let weight = Var::ones((1, 1, 2, 2), DType::F32, &Device::Cpu)?;
/// let config = ConvTranspose2dConfig { stride: 2, ..Default::default() };
/// let layer = ConvTranspose2d::new(weight.as_tensor().clone(), None, config);
/// let x = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?;
/// let y = layer.forward(&x)?;
/// assert_eq!(y.squeeze(0)?.squeeze(0)?.to_vec2::<f32>()?, [[1., 1., 2., 2.], [1., 1., 2., 2.]]);
/// assert_eq!(y.sum_all()?.backward()?.get(&weight).unwrap().sum_all()?.to_scalar::<f32>()?, 4. * 3.);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[doc(alias = "tf.keras.layers.Conv2DTranspose")]
#[doc(alias = "tf.nn.conv2d_transpose")]
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    weight: Tensor,
    bias: Option<Tensor>,
    config: ConvTranspose2dConfig,
}

/// A transposed convolution of sequences: candle_nn's `ConvTranspose1d` with gradients, which candle 0.11 does not
/// support.
///
/// `x` has shape `[n, in, length]`, and the result has shape `[n, out, …]`. The weight has shape `[in, out / groups,
/// width]`, and the bias `[out]`. The layer is computed as a transposed convolution of images with one row.
#[doc(alias = "tf.keras.layers.Conv1DTranspose")]
#[doc(alias = "tf.nn.conv1d_transpose")]
#[derive(Clone, Debug)]
pub struct ConvTranspose1d {
    weight: Tensor,
    bias: Option<Tensor>,
    config: ConvTranspose1dConfig,
}

/// Defines the layer `$layer`, which wraps candle_nn's layer of the same name, and the functions `$make` that create
/// it.
macro_rules! layer {
    ($layer:ident, $config:ident, $weight:literal, $($make:ident: $what:literal),+) => {
        $(
            #[doc = concat!("Creates a layer ", $what, ", initialized like candle_nn's.")]
            ///
            /// # Errors
            /// Returns the errors of the `VarBuilder`.
            pub fn $make(
                in_channels: usize,
                out_channels: usize,
                kernel_size: usize,
                config: $config,
                vb: VarBuilder,
            ) -> Result<$layer> {
                candle_nn::$make(in_channels, out_channels, kernel_size, config, vb).map($layer::from)
            }
        )+

        impl From<candle_nn::$layer> for $layer {
            fn from(layer: candle_nn::$layer) -> Self {
                Self::new(layer.weight().clone(), layer.bias().cloned(), *layer.config())
            }
        }

        impl $layer {
            #[doc = concat!("Creates a layer from a weight ", $weight, " and a bias `[out]`.")]
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: $config) -> Self {
                Self { weight, bias, config }
            }

            #[doc = concat!("Returns the weight, ", $weight, ".")]
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// Returns the bias, of shape `[out]`, or `None` if the layer has none.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }

            /// Returns the configuration of the layer.
            pub fn config(&self) -> &$config {
                &self.config
            }
        }
    };
}
layer!(
    ConvTranspose2d, ConvTranspose2dConfig, "`[in, out, …, …]`",
    conv_transpose2d: "with a bias: variables `weight` and `bias`",
    conv_transpose2d_no_bias: "without a bias: variable `weight`"
);
layer!(
    ConvTranspose1d, ConvTranspose1dConfig, "`[in, out / groups, width]`",
    conv_transpose1d: "with a bias: variables `weight` and `bias`",
    conv_transpose1d_no_bias: "without a bias: variable `weight`"
);

impl Module for ConvTranspose2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let ConvTranspose2dConfig { padding, output_padding, stride, dilation } = self.config;
        let config = Conv2dConfig { padding, stride, dilation, groups: 1, cudnn_fwd_algo: None };
        forward(x, &self.weight, self.bias.as_ref(), &config, output_padding)
    }
}

impl Module for ConvTranspose1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 3 || self.weight.rank() != 3 {
            bail!(
                "conv_transpose1d: x has to be [n, in, length] and the weight [in, out / groups, width], not {:?} and {:?}",
                x.dims(),
                self.weight.dims()
            );
        }
        let ConvTranspose1dConfig { padding, output_padding, stride, dilation, groups } = self.config;
        let config = Conv2dConfig { padding: 0, stride, dilation, groups, cudnn_fwd_algo: None };
        // Rows above and below are not cropped: both paddings apply to the length only.
        let whole = forward(&x.unsqueeze(2)?, &self.weight.unsqueeze(2)?, None, &config, 0)?.squeeze(2)?;
        let size = crop("conv_transpose1d", whole.dim(2)?, padding, output_padding)?;
        let y = padded("conv_transpose1d", &whole, 2, [0, output_padding])?
            .narrow(2, padding, size)?
            .contiguous()?;
        match &self.bias {
            Some(bias) if y.elem_count() > 0 => {
                let bias = if autocast::widens(&y) { &bias.to_dtype(y.dtype())? } else { bias };
                y.broadcast_add(&bias.reshape((1, bias.dims1()?, 1))?)
            }
            _ => Ok(y),
        }
    }
}

/// Computes the transposed convolution of images, with any number of groups.
fn forward(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: &Conv2dConfig,
    output_padding: usize,
) -> Result<Tensor> {
    let (&[images, all, height, width], &[inputs, channels, k_height, k_width]) = (x.dims(), weight.dims())
    else {
        bail!(
            "conv_transpose2d: x has to be [n, in, height, width] and the weight [in, out, …, …], not {:?} and {:?}",
            x.dims(),
            weight.dims()
        )
    };
    let Conv2dConfig { padding, stride, dilation, groups, .. } = *config;
    if all != inputs || groups == 0 || all % groups != 0 {
        bail!("conv_transpose2d: {all} channels don't fit a weight {:?} in {groups} groups", weight.dims())
    }
    if [height, width, k_height, k_width, stride, dilation, channels, inputs].contains(&0) {
        bail!(
            "conv_transpose2d: images {:?}, a weight {:?} and {config:?} have to be at least 1",
            x.dims(),
            weight.dims()
        )
    }
    // A size that overflows is refused below.
    let whole = |places, kernel| conv2d::covered(places, kernel, config).unwrap_or(usize::MAX);
    let whole = [whole(height, k_height), whole(width, k_width)];
    let [rows, columns] = whole.map(|whole| whole.saturating_add(output_padding));
    require_size("conv_transpose2d", &[images, channels * groups, rows, columns])?;
    let size = |whole| crop("conv_transpose2d", whole, padding, output_padding);
    let size = [size(whole[0])?, size(whole[1])?];
    if images == 0 {
        return without_elements(&[0, channels * groups, size[0], size[1]], x.dtype(), x.device());
    }
    let converted = autocast::compute_dtype(x, weight);
    let x = &converted.map_or(Ok(x.clone()), |dtype| x.to_dtype(dtype))?;
    if let Some(y) = conv2d::transposed(x, weight, bias, size, config)? {
        return Ok(y);
    }
    let Some(dtype) = converted else { return stock(x, weight, bias, size, config, output_padding) };
    let inner = autocast::convolution_dtype(x, dtype);
    let (weight, bias) = autocast::parameters(weight, bias, inner)?;
    stock(&x.to_dtype(inner)?, &weight, bias.as_ref(), size, config, output_padding)?.to_dtype(dtype)
}

/// Computes the transposed convolution with candle's own operations. All operands must have the same dtype. `size` is
/// the height and width of the result.
fn stock(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    size: [usize; 2],
    config: &Conv2dConfig,
    output_padding: usize,
) -> Result<Tensor> {
    let Conv2dConfig { padding, stride, dilation, groups, .. } = *config;
    let all = x.dim(1)?;
    // Compute the complete result first: its gradients are correct for any size, even by candle's own
    // backward.
    let part = |number: usize| {
        let (x, weight) = (x.narrow(1, number * all / groups, all / groups)?, weight.chunk(groups, 0)?);
        x.contiguous()?.conv_transpose2d(&weight[number].contiguous()?, 0, 0, stride, dilation)
    };
    let y = match groups {
        1 => x.conv_transpose2d(weight, 0, 0, stride, dilation)?,
        _ => Tensor::cat(&(0..groups).map(part).collect::<Result<Vec<_>>>()?, 1)?,
    };
    let y = padded("conv_transpose2d", &y, 2, [0, output_padding])?;
    let y = padded("conv_transpose2d", &y, 3, [0, output_padding])?;
    let y = y.narrow(2, padding, size[0])?.narrow(3, padding, size[1])?.contiguous()?;
    match bias {
        Some(bias) => y.broadcast_add(&bias.reshape((1, bias.dims1()?, 1, 1))?),
        None => Ok(y),
    }
}

/// Returns the size of an axis after `output_padding` elements are added at its end and `padding` elements are removed
/// at both ends. Returns an error if no element is left.
fn crop(name: &str, whole: usize, padding: usize, output_padding: usize) -> Result<usize> {
    let size = whole.checked_add(output_padding).zip(padding.checked_mul(2));
    match size.and_then(|(size, crop)| size.checked_sub(crop)) {
        Some(size) if size > 0 => Ok(size),
        _ => bail!(
            "{name}: a padding of {padding} cuts off all of the {whole} + {output_padding} elements along an axis"
        ),
    }
}
