//! Activations that layers apply in the same operation as their products.

use candle_core::{Result, Tensor};
use candle_nn::Activation;
use distribute_base::internal::{Number, choose};

/// An activation whose derivative can be computed from its output, so that its input need not be kept.
#[derive(Clone, Copy, Debug)]
pub(super) enum FromOutput {
    Relu,
    Sigmoid,
    /// A leaky relu. The value is the slope for negative inputs. It must be positive.
    LeakyRelu(f64),
}

impl FromOutput {
    pub(super) fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::Relu => Some(Self::Relu),
            Activation::Sigmoid => Some(Self::Sigmoid),
            Activation::LeakyRelu(slope) if slope > 0. => Some(Self::LeakyRelu(slope)),
            _ => None,
        }
    }

    /// Applies the activation with candle's operations, on any device. The gradient of a relu at 0 is that of negative
    /// inputs, unlike with candle's own relus.
    pub(super) fn composed(self, x: &Tensor) -> Result<Tensor> {
        if x.elem_count() == 0 {
            return Ok(x.clone());
        }
        let above = || x.detach().gt(&x.zeros_like()?);
        match self {
            Self::Relu => choose(&above()?, x, &x.zeros_like()?),
            Self::LeakyRelu(slope) => choose(&above()?, x, &(x * slope)?),
            Self::Sigmoid => candle_nn::ops::sigmoid(x),
        }
    }

    /// Computes the gradient of the inputs from the outputs `y` and the outputs' gradient, with candle's operations.
    pub(super) fn composed_backward(self, y: &Tensor, upstream: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => choose(&y.gt(&y.zeros_like()?)?, upstream, &upstream.zeros_like()?),
            Self::LeakyRelu(slope) => choose(&y.gt(&y.zeros_like()?)?, upstream, &(upstream * slope)?),
            Self::Sigmoid => (upstream * y)? * y.affine(-1., 1.)?,
        }
    }

    /// Computes the gradient of the inputs from the outputs and the outputs' gradient.
    pub(super) fn backward<T: Number>(self, outputs: &[T], gradient: &[T]) -> Vec<T> {
        let (zero, one, pairs) = (T::of(0.), T::of(1.), gradient.iter().zip(outputs));
        match self {
            Self::Relu => pairs.map(|(g, y)| if *y > zero { *g } else { zero }).collect(),
            Self::Sigmoid => pairs.map(|(g, y)| *g * *y * (one - *y)).collect(),
            Self::LeakyRelu(slope) => {
                let slope = T::of(slope);
                pairs.map(|(g, y)| if *y > zero { *g } else { *g * slope }).collect()
            }
        }
    }
}
