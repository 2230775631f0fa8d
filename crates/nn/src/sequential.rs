//! A chain of layers that are applied one after another.

use candle_core::{Module, Result, Tensor};
use candle_nn::func;
use std::fmt;

/// A chain of layers and closures, each of which is applied to the output of the previous one. Unlike candle_nn's
/// `Sequential`, it can be shared by replicas.
///
/// candle_nn's type has fields of type `Box<dyn Module>`, so it can be neither shared between threads nor sent to
/// another thread. The layers of this type must be `Send` and `Sync`, as all other layers of candle_nn are. To train a
/// model that contains candle_nn's type, use `per_thread`.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{DType, Device, Module, Tensor};
/// use distribute::nn::{Activation, linear, seq};
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| {
///     let model = seq().add(linear(8, 16, vb.pp("0"))?).add(Activation::Gelu).add(linear(16, 1, vb.pp("2"))?);
///     distribute::Ok(model.add_fn(|x| x.squeeze(1)))
/// })?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let x = Tensor::ones((3, 8), DType::F32, &Device::Cpu)?;
/// strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.forward(&x)?.sqr()?.mean_all()?, 3))?;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.Sequential")]
pub struct Sequential {
    layers: Vec<Box<dyn Module + Send + Sync>>,
}

/// Creates a [`Sequential`] without layers. Until layers are added, its output is its input.
pub fn seq() -> Sequential {
    Sequential { layers: Vec::new() }
}

impl Sequential {
    /// Returns the number of layers.
    pub fn len(&self) -> i64 {
        self.layers.len() as i64
    }

    /// Returns whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Appends a layer to the chain.
    #[expect(clippy::should_implement_trait, reason = "candle_nn's name")]
    pub fn add<M: Module + Send + Sync + 'static>(mut self, layer: M) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// Appends a closure to the chain.
    pub fn add_fn<F>(self, f: F) -> Self
    where
        F: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.add(func(f))
    }

    /// Returns the outputs of all layers, in order.
    ///
    /// # Errors
    /// Returns the errors of the layers.
    pub fn forward_all(&self, xs: &Tensor) -> Result<Vec<Tensor>> {
        let mut outputs: Vec<Tensor> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            outputs.push(layer.forward(outputs.last().unwrap_or(xs))?);
        }
        Ok(outputs)
    }
}

impl Module for Sequential {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(xs.clone(), |xs, layer| layer.forward(&xs))
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequential({} layers)", self.layers.len())
    }
}
