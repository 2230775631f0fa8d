//! Convolutions of sequences, which are computed as convolutions of images with one row.

use super::Conv2d;
use super::conv2d::padded;
use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Conv1dConfig, Conv2dConfig, VarBuilder};

/// A convolution of sequences: candle_nn's `Conv1d` with correct gradients.
///
/// On the CPU, candle 0.11 computes a wrong gradient of the weight if a batch contains several sequences, and a wrong
/// gradient of the input if there is no padding.
///
/// `x` has shape `[n, in, length]`, and the result has shape `[n, out, …]`. The weight has shape `[out, in / groups,
/// width]`, and the bias `[out]`. The layer is computed as a [`Conv2d`] of images with one row.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{DType, Device, Module, Tensor};
/// use distribute::nn::{Conv1dConfig, conv1d};
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| conv1d(2, 4, 3, Conv1dConfig { padding: 1, ..Default::default() }, vb))?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let x = Tensor::ones((5, 2, 7), DType::F32, &Device::Cpu)?;
/// strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.forward(&x)?.mean_all()?, 5))?;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.layers.Conv1D")]
#[doc(alias = "tf.nn.conv1d")]
#[derive(Clone, Debug)]
pub struct Conv1d {
    weight: Tensor,
    bias: Option<Tensor>,
    config: Conv1dConfig,
}

/// Creates a layer with a bias. Its variables `weight` and `bias` are initialized like candle_nn's.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn conv1d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    candle_nn::conv1d(in_channels, out_channels, kernel_size, config, vb).map(Conv1d::from)
}

/// Creates a layer without a bias. Its variable `weight` is initialized like candle_nn's.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn conv1d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    candle_nn::conv1d_no_bias(in_channels, out_channels, kernel_size, config, vb).map(Conv1d::from)
}

impl From<candle_nn::Conv1d> for Conv1d {
    fn from(layer: candle_nn::Conv1d) -> Self {
        Self::new(layer.weight().clone(), layer.bias().cloned(), *layer.config())
    }
}

impl Conv1d {
    /// Creates a layer from a weight of shape `[out, in / groups, width]` and a bias of shape `[out]`.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv1dConfig) -> Self {
        Self { weight, bias, config }
    }

    /// Returns the weight, of shape `[out, in / groups, width]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the bias, of shape `[out]`, or `None` if the layer has none.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Returns the configuration: stride, padding, dilation and groups.
    pub fn config(&self) -> &Conv1dConfig {
        &self.config
    }
}

impl Module for Conv1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 3 || self.weight.rank() != 3 {
            bail!(
                "conv1d: x has to be [n, in, length] and the weight [out, in / groups, width], not {:?} and {:?}",
                x.dims(),
                self.weight.dims()
            );
        }
        let Conv1dConfig { padding, stride, dilation, groups, cudnn_fwd_algo } = self.config;
        // The single row gets no padding above and below.
        let rows = padded("conv1d", x, 2, [padding; 2])?;
        let config = Conv2dConfig { padding: 0, stride, dilation, groups, cudnn_fwd_algo };
        Conv2d::new(self.weight.unsqueeze(2)?, self.bias.clone(), config)
            .forward(&rows.unsqueeze(2)?)?
            .squeeze(2)
    }
}
