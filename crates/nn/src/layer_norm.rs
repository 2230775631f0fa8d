//! Layer norm and RMS norm, as one fused operation each for the forward and the backward pass.

use super::autocast;
use super::lanes::sum;
use super::operation::{self, Operand, Operation};
use candle_core::{DType, Module, Result, Shape, Tensor};
use candle_nn::{LayerNormConfig, VarBuilder};
use distribute_base::internal::{Number, gradients, with_elements};

/// A layer normalization: candle_nn's `LayerNorm`, with gradients for all inputs.
///
/// Each row along the last dimension is shifted to mean 0 and scaled to variance 1. It is then multiplied by a weight,
/// and a bias is added. For contiguous inputs with a bias, candle_nn uses a fused operation without a gradient.
///
/// `x` has shape `[…, size]`, with at least one dimension. The weight and the bias have shape `[size]`. If the mean is
/// not removed, this is RMS norm. f32 and f64 on the CPU use a single operation; other dtypes and devices use several
/// of candle's operations.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{DType, Device, Module, Tensor};
/// use distribute::nn::layer_norm;
///
/// let strategy = MirroredStrategy::new(["cpu:0"])?;
/// let model = strategy.replicate(|vb| layer_norm(2, 0., vb.pp("norm")))?;
/// let x = Tensor::new(&[[1f32, 3.], [20., 10.]], &Device::Cpu)?;
/// let y = strategy.run(&model, |_, norm| Ok(norm.forward(&x)?.to_vec2::<f32>()?))?;
/// assert_eq!(y.values()[0], [[-1., 1.], [1., -1.]]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.layers.LayerNormalization")]
#[doc(alias = "LayerNormalization")]
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

/// Creates a layer. Its variables `weight` and, if the configuration is affine, `bias` are initialized like
/// candle_nn's.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn layer_norm<C: Into<LayerNormConfig>>(size: usize, config: C, vb: VarBuilder) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, config, vb).map(LayerNorm::from)
}

/// Creates a layer with the variable `weight` and no bias.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    candle_nn::layer_norm_no_bias(size, eps, vb).map(LayerNorm::from)
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(layer: candle_nn::LayerNorm) -> Self {
        Self {
            weight: layer.weight().clone(),
            bias: layer.bias().cloned(),
            remove_mean: layer.remove_mean(),
            eps: layer.eps(),
        }
    }
}

impl LayerNorm {
    /// Creates a layer from a weight and a bias of shape `[size]`. `eps` is added to the variance.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self { weight, bias: Some(bias), remove_mean: true, eps }
    }

    /// Creates a layer without a bias from a weight of shape `[size]`. `eps` is added to the variance.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self { weight, bias: None, remove_mean: true, eps }
    }

    /// Creates a layer that does not remove the mean, and scales rows to a mean square of 1. The weight has shape
    /// `[size]`.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self { weight, bias: None, remove_mean: false, eps }
    }

    /// Returns the weight, of shape `[size]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the bias, of shape `[size]`, or `None` if the layer has none.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Returns epsilon, which is added to the variance.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Returns whether rows are shifted to mean 0. If not, this is RMS norm.
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }

    /// Returns whether the fused operation supports `x` with this layer's parameters.
    fn is_fusable(&self, x: &Tensor) -> bool {
        let Some(&size) = x.dims().last() else { return false };
        let bias = self.bias.as_ref();
        let parameters = [Some(&self.weight), bias];
        parameters.into_iter().flatten().all(|t| t.dims() == [size])
            && operation::is_supported(x, &self.weight, bias)
    }

    /// Computes the norm with candle's operations, which have gradients. candle_nn uses the same operations
    /// if there is no bias.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let name = if self.remove_mean { "layer_norm" } else { "rms_norm" };
        let bias = self.bias.iter().map(|bias| ("the bias", bias));
        let others: Vec<_> = [("the weight", &self.weight)].into_iter().chain(bias).collect();
        operation::require_dtype(name, ("the input", x), &others)?;
        if x.elem_count() == 0 {
            return Ok(x.clone());
        }
        let weight = self.weight.clone();
        let y = if self.remove_mean {
            candle_nn::LayerNorm::new_no_bias(weight, self.eps).forward(x)?
        } else {
            candle_nn::LayerNorm::rms_norm(weight, self.eps).forward(x)?
        };
        self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.is_fusable(x) {
            let operation = Fused { remove_mean: self.remove_mean, eps: self.eps };
            operation::apply(operation, x, &self.weight, self.bias.as_ref())
        } else if autocast::widens(x) && self.weight.dtype() == DType::F32 {
            self.composed(&autocast::widened(x)?)?.to_dtype(x.dtype())
        } else {
            self.composed(x)
        }
    }
}

/// A [`LayerNorm`] that does not remove the mean, under candle_nn's name.
#[doc(alias = "tf.keras.layers.RMSNormalization")]
#[doc(alias = "RMSNormalization")]
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

/// Creates a layer. Its variable `weight` is initialized like candle_nn's.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    candle_nn::rms_norm(size, eps, vb).map(|layer| RmsNorm(layer.into_inner().into()))
}

impl RmsNorm {
    /// Creates a layer from a weight of shape `[size]`. `eps` is added to the mean square.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// Converts this layer to a [`LayerNorm`] that does not remove the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// Returns the weight, of shape `[size]`.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// Returns epsilon, which is added to the mean square.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// Calls `forward`. This method exists because candle_nn's `RmsNorm` has a gradient only in the method with this
    /// name.
    ///
    /// # Errors
    /// Returns the errors of `forward`.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}

/// The fused operation, which processes one row after another.
struct Fused {
    remove_mean: bool,
    eps: f64,
}

/// The gradients of input, weight and bias.
type Gradients<T> = (Vec<T>, Vec<T>, Vec<T>);

impl Fused {
    /// Returns the mean to subtract from a row, which is 0 for RMS-norm, and the inverse standard deviation to
    /// multiply by.
    fn statistics<T: Number>(&self, row: &[T]) -> (T, T) {
        let size = row.len() as f64;
        let mean = if self.remove_mean { T::of(sum(row, row, |x, _| x).to_f64() / size) } else { T::of(0.) };
        let squares = sum(row, row, |x, _| (x - mean) * (x - mean)).to_f64();
        (mean, T::of(1. / (squares / size + self.eps).sqrt()))
    }

    /// Computes the gradients. If h is the normalized row and u its gradient, the gradient of x is (u - mean(u) - h
    /// mean(u h)) / deviation. For RMS norm, mean(u) is left out.
    fn gradients<T: Number>(&self, x: &[T], weight: &[T], upstream: &[T]) -> Gradients<T> {
        let size = weight.len();
        let mut of_x = Vec::with_capacity(x.len());
        let (mut of_weight, mut of_bias) = (vec![T::of(0.); size], vec![T::of(0.); size]);
        // Buffers for rows of h and u, reused for each row.
        let (mut normalized, mut inner) = (vec![T::of(0.); size], vec![T::of(0.); size]);
        for (x, upstream) in x.chunks_exact(size).zip(upstream.chunks_exact(size)) {
            let (mean, inverse) = self.statistics(x);
            normalized.iter_mut().zip(x).for_each(|(h, x)| *h = (*x - mean) * inverse);
            inner.iter_mut().zip(upstream.iter().zip(weight)).for_each(|(u, (up, w))| *u = *up * *w);
            let along = T::of(sum(&inner, &normalized, |u, h| u * h).to_f64() / size as f64);
            let level = if self.remove_mean {
                T::of(sum(&inner, &inner, |u, _| u).to_f64() / size as f64)
            } else {
                T::of(0.)
            };
            of_x.extend(inner.iter().zip(&normalized).map(|(u, h)| (*u - level - *h * along) * inverse));
            of_weight
                .iter_mut()
                .zip(upstream.iter().zip(&normalized))
                .for_each(|(sum, (up, h))| *sum += *up * *h);
            of_bias.iter_mut().zip(upstream).for_each(|(sum, up)| *sum += *up);
        }
        (of_x, of_weight, of_bias)
    }
}

impl Operation for Fused {
    const NAME: &'static str = "layer-norm";

    fn forward<T: Number>(
        &self,
        x: Operand<'_, T>,
        weight: Operand<'_, T>,
        bias: Option<&[T]>,
    ) -> Result<(Vec<T>, Shape)> {
        let (mut y, weight) = (Vec::with_capacity(x.elements.len()), weight.elements);
        for row in x.elements.chunks_exact(weight.len()) {
            let (mean, inverse) = self.statistics(row);
            let scaled = row.iter().zip(weight).map(|(x, weight)| (*x - mean) * inverse * *weight);
            match bias {
                Some(bias) => y.extend(scaled.zip(bias).map(|(scaled, bias)| scaled + *bias)),
                None => y.extend(scaled),
            }
        }
        Ok((y, x.shape.clone()))
    }

    fn backward<T: Number>(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (of_x, of_weight, of_bias) = with_elements(x, |x| {
            with_elements(weight, |weight| {
                with_elements(upstream, |upstream| self.gradients::<T>(x, weight, upstream))
            })
        })???;
        let store = |variable: &Tensor, gradient: &[T]| {
            gradients::gradient(variable, |place: &mut [T], add| {
                if add {
                    place.iter_mut().zip(gradient).for_each(|(sum, x)| *sum += *x)
                } else {
                    place.copy_from_slice(gradient)
                }
            })
        };
        let of_x = x.track_op().then(|| Tensor::from_vec(of_x, x.shape(), x.device()));
        let of_bias = bias.map(|bias| store(bias, &of_bias));
        Ok([of_x.transpose()?, store(weight, &of_weight)?, of_bias.transpose()?.flatten()])
    }
}
